// A simulated accelerator: PyTorch's PrivateUse1 backend over host memory.
//
// It refuses what a real accelerator refuses (tensors of two devices in one operator, a generator of another
// device, float64 when asked to) and otherwise runs the CPU kernel on the same memory, so results equal the
// CPU's. It counts the waits and the copies that would stall a real accelerator.
#include "runtime.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <unordered_map>
#include <unordered_set>

namespace {

// ---- One piece of memory under two names ---------------------------------------------------------------------

Tensor named(const Tensor& like, c10::Storage storage, c10::DispatchKey key) {
  auto made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), DispatchKeySet(key), like.dtype());
  auto* impl = made.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  if (like.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  if (like.is_conj()) made._set_conj(true);
  if (like.is_neg()) made._set_neg(true);
  return made;
}

Tensor on_host(const Tensor& t) {
  if (!ours(t)) return t;
  c10::Storage same(c10::Storage::use_byte_size_t(), t.storage().nbytes(),
                    at::DataPtr(t.storage().mutable_data(), Device(at::kCPU)), at::getCPUAllocator(), true);
  return named(t, std::move(same), c10::DispatchKey::CPU);
}

Tensor on_device(const Tensor& t, Device d) {
  check_dtype(t.scalar_type());
  auto* kept = new Tensor(t);  // the CPU tensor lives as long as the device's storage
  at::DataPtr start(t.storage().mutable_data(), kept, [](void* k) { delete static_cast<Tensor*>(k); }, d);
  c10::Storage same(c10::Storage::use_byte_size_t(), t.storage().nbytes(), std::move(start), &memory, true);
  return named(t, std::move(same), KEY);
}

// ---- The kernel of every operator without one of its own -----------------------------------------------------

struct Traits {  // what an operator's name tells
  bool indexes = false, waits = false, random = false;
};

const Traits& traits_of(const c10::OperatorHandle& op) {
  // CUDA must know a value of these before it can go on: a scalar, a truth or the size of the result.
  static const std::unordered_set<std::string> waiting = {
      "aten::_local_scalar_dense", "aten::equal", "aten::nonzero", "aten::masked_select", "aten::_unique",
      "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive", "aten::bincount",
      "aten::_linalg_check_errors", "aten::linalg_eig", "aten::linalg_eigvals", "aten::linalg_lstsq"};
  static const std::unordered_set<std::string> indexing = {"aten::index", "aten::index_put", "aten::index_put_",
                                                           "aten::_index_put_impl_", "aten::_unsafe_index",
                                                           "aten::_unsafe_index_put"};
  thread_local std::unordered_map<c10::OperatorName, Traits> known;
  auto [place, fresh] = known.try_emplace(op.operator_name());
  if (fresh) {
    const auto& name = op.schema().name();
    const bool counts = name == "aten::repeat_interleave" && op.schema().overload_name() == "Tensor";
    place->second = {indexing.count(name) > 0, waiting.count(name) > 0 || counts,
                     op.hasTag(at::Tag::nondeterministic_seeded)};
  }
  return place->second;
}

struct Found {  // where the arguments of one call live
  Maybe<Device> device;   // of the tensors that decide
  Maybe<Device> another;  // of one that disagrees
  Maybe<Device> asked;    // written out, as in torch.zeros(3, device=…)

  void see(const Tensor& t, bool may_be_host) {
    if (!t.defined() || (t.device().is_cpu() && may_be_host)) return;
    if (!device) device = t.device();
    else if (*device != t.device()) another = t.device();
  }
  Device place() const {
    if (asked) return asked->has_index() ? *asked : Device(SIM, current);
    return device && device->type() == SIM ? *device : Device(SIM, current);
  }
};

Found look(at::ArrayRef<c10::IValue> arguments, const Traits& traits) {
  Found found;
  for (const auto& value : arguments) {
    if (value.isTensor()) {
      found.see(value.toTensor(), value.toTensor().defined() && value.toTensor().dim() == 0);  // CUDA reads a CPU scalar
    } else if (value.isTensorList()) {
      for (const Tensor& t : value.toTensorList()) found.see(t, false);
    } else if (value.isOptionalTensorList()) {  // indices: CUDA takes them from the host, at the price of a copy
      for (const Maybe<Tensor>& t : value.toOptionalTensorList()) {
        if (!t || !t->defined()) continue;
        found.see(*t, traits.indexes);
      }
    } else if (value.isDevice() && value.toDevice().type() == SIM) {
      found.asked = value.toDevice();
    }
  }
  return found;
}

struct Aliases {  // device tensors of one call, and their names on the host
  std::vector<std::pair<Tensor, Tensor>> pairs;

  Tensor host(const Tensor& t) {
    if (!ours(t)) return t;
    pairs.emplace_back(t, on_host(t));
    return pairs.back().second;
  }
  void take_over_resized() const {  // out= tensors that the kernel gave another size
    for (const auto& [own, alias] : pairs) {
      const bool same = alias.storage().data() == own.storage().data() && alias.sizes() == own.sizes() &&
                        alias.strides() == own.strides();
      if (same) continue;
      own.unsafeGetTensorImpl()->set_storage_keep_dtype(on_device(alias, own.device()).storage());
      own.unsafeGetTensorImpl()->set_sizes_and_strides(alias.sizes(), alias.strides(), alias.storage_offset());
    }
  }
  Tensor back(const Tensor& t, Device d) const {
    if (!t.defined() || !t.device().is_cpu()) return t;
    for (const auto& [own, alias] : pairs)
      if (t.is_same(alias)) return own;
    for (const auto& [own, alias] : pairs)  // a view
      if (t.storage().is_alias_of(alias.storage())) return named(t, own.storage(), KEY);
    return on_device(t, d);
  }
};

void to_cpu_arguments(const std::string& name, at::ArrayRef<c10::IValue> seen, torch::jit::Stack& stack, size_t base,
                      Aliases& aliases, Device place) {
  for (size_t i = 0; i < seen.size(); ++i) {
    auto& value = stack[base + i];
    if (value.isTensor()) {
      if (value.toTensor().defined()) value = aliases.host(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor& t : value.toTensorList()) list.push_back(aliases.host(t));
      value = list;
    } else if (value.isOptionalTensorList()) {
      c10::List<Maybe<Tensor>> list;
      for (const Maybe<Tensor>& t : value.toOptionalTensorList())
        list.push_back(t && t->defined() ? Maybe<Tensor>(aliases.host(*t)) : t);
      value = list;
    } else if (value.isDevice() && value.toDevice().type() == SIM) {
      value = Device(at::kCPU);
    } else if (value.isGenerator()) {
      auto given = value.toGenerator();
      TORCH_CHECK(given.device() == place, name, ": Expected a generator of ", place, " but found one of ",
                  given.device());
      value = inner_of(given);
    }
  }
}

// Draws without a generator come from the device's own default one; no CPU state moves.
struct Lent {
  Generator host = at::detail::getDefaultCPUGenerator(), device;
  Tensor before;
  explicit Lent(DeviceIndex i) : device(inner_of(default_generator(i))), before(host.get_state()) {
    host.set_state(device.get_state());
  }
  ~Lent() {
    device.set_state(host.get_state());
    host.set_state(before);
  }
};

void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto& traits = traits_of(op);
  const auto base = stack->size() - schema.arguments().size();
  const auto arguments = at::ArrayRef<c10::IValue>(*stack).slice(base);
  const auto found = look(arguments, traits);
  TORCH_CHECK(!found.another, schema.name(), ": Expected all tensors to be on the same device, but found at least two "
              "devices, ", *found.device, " and ", *found.another, "!");
  const auto place = found.place();
  if (traits.waits) ++waits;
  Aliases aliases;
  to_cpu_arguments(schema.name(), arguments, *stack, base, aliases, place);
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    Maybe<Lent> lent;
    if (traits.random) lent.emplace(place.index());
    op.callBoxed(stack);
  }
  aliases.take_over_resized();
  for (auto at = stack->end() - schema.returns().size(); at != stack->end(); ++at) {
    auto& value = *at;
    if (value.isTensor()) {
      value = aliases.back(value.toTensor(), place);
    } else if (value.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor& t : value.toTensorList()) list.push_back(aliases.back(t, place));
      value = list;
    }
  }
}

// ---- Operators that make, copy or repoint memory -------------------------------------------------------------

Tensor empty(Sizes size, Maybe<at::ScalarType> type, Maybe<at::Layout>, Maybe<Device> d, Maybe<bool>,
             Maybe<at::MemoryFormat> format) {
  const auto dtype = type.value_or(c10::get_default_dtype_as_scalartype());
  check_dtype(dtype);
  const c10::DeviceGuard on(d && d->has_index() ? *d : Device(SIM, current));
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &memory, DispatchKeySet(KEY), dtype, format);
}

Tensor empty_strided(Sizes size, Sizes stride, Maybe<at::ScalarType> type, Maybe<at::Layout>, Maybe<Device> d,
                     Maybe<bool>) {
  const auto dtype = type.value_or(c10::get_default_dtype_as_scalartype());
  check_dtype(dtype);
  const c10::DeviceGuard on(d && d->has_index() ? *d : Device(SIM, current));
  return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), &memory,
                                           DispatchKeySet(KEY), dtype);
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool) {
  if (!ours(from)) ++to_device;
  if (!ours(to)) ++to_host;
  on_host(to).copy_(on_host(from));
  return to;
}

const Tensor& resize(const Tensor& self, Sizes size, Maybe<at::MemoryFormat>) {
  const auto wanted = C10_AS_INTARRAYREF_SLOW(size);
  if (self.sizes() == wanted) return self;
  const auto fresh = at::empty(wanted, self.options());
  const auto kept = std::min(fresh.storage().nbytes(), self.storage().nbytes());
  if (kept) std::memcpy(fresh.storage().mutable_data(), self.storage().data(), kept);
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(fresh.storage());
  self.unsafeGetTensorImpl()->set_sizes_and_strides(fresh.sizes(), fresh.strides(), 0);
  return self;
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

Tensor& point_at(Tensor& self, c10::Storage storage, at::IntArrayRef size, at::IntArrayRef stride, int64_t offset) {
  TORCH_CHECK(storage.device() == self.device(), "set_: storage is on ", storage.device(), ", tensor on ", self.device());
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(storage));
  self.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride, offset);
  return self;
}
Tensor& set_part(Tensor& self, c10::Storage storage, c10::SymInt offset, Sizes size, Sizes stride) {
  const auto length = C10_AS_INTARRAYREF_SLOW(size);
  const auto dense = c10::contiguous_strides(length);
  const auto given = C10_AS_INTARRAYREF_SLOW(stride);
  return point_at(self, std::move(storage), length, given.size() == length.size() ? given : at::IntArrayRef(dense),
                  offset.expect_int());
}
Tensor& set_storage(Tensor& self, c10::Storage storage) {
  const int64_t length = storage.nbytes() / self.dtype().itemsize();
  return point_at(self, std::move(storage), {length}, {1}, 0);
}
Tensor& set_tensor(Tensor& self, const Tensor& source) {
  return point_at(self, source.storage(), source.sizes(), source.strides(), source.storage_offset());
}

// ---- Operators that PyTorch sends to this key under another name ---------------------------------------------

void check_same(const char* name, std::initializer_list<Tensor> tensors) {
  Found found;
  for (const auto& t : tensors) found.see(t, false);
  TORCH_CHECK(!found.another, name, ": Expected all tensors to be on the same device, but found at least two devices, ",
              *found.device, " and ", *found.another, "!");
}

Tensor convolution(const Tensor& x, const Tensor& weight, const Maybe<Tensor>& bias, Sizes stride, Sizes padding,
                   Sizes dilation, bool transposed, Sizes output_padding, c10::SymInt groups) {
  const Tensor shift = bias.value_or(Tensor());
  check_same("aten::convolution", {x, weight, shift});
  const auto given = shift.defined() ? Maybe<Tensor>(on_host(shift)) : std::nullopt;
  return on_device(at::convolution_symint(on_host(x), on_host(weight), given, stride, padding, dilation, transposed,
                                          output_padding, groups), x.device());
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(const Tensor& grad, const Tensor& x, const Tensor& weight,
                                                        Sizes stride, Sizes padding, Sizes dilation, bool transposed,
                                                        Sizes output_padding, c10::SymInt groups,
                                                        std::array<bool, 3> mask) {
  check_same("aten::convolution_backward", {grad, x, weight});
  const std::vector<c10::SymInt> bias{transposed ? weight.sym_size(1) * groups : weight.sym_size(0)};
  const auto [dx, dw, db] =
      at::convolution_backward_symint(on_host(grad), on_host(x), on_host(weight), Sizes(bias), stride, padding,
                                      dilation, transposed, output_padding, groups, mask);
  const auto back = [&](const Tensor& t) { return t.defined() ? on_device(t, x.device()) : t; };
  return {back(dx), back(dw), back(db)};
}

// A GRU cell: r = σ(i₀+h₀), u = σ(i₁+h₁), n = tanh(i₂+r·h₂), y = n + u·(x−n); backward from r, u, n, x, h₂.
std::tuple<Tensor, Tensor> gru_cell(const Tensor& input, const Tensor& hidden, const Tensor& x,
                                    const Maybe<Tensor>& input_bias, const Maybe<Tensor>& hidden_bias) {
  const bool biased = input_bias && input_bias->defined();
  const auto i = (biased ? input + *input_bias : input).chunk(3, 1);
  const auto h = (biased ? hidden + *hidden_bias : hidden).chunk(3, 1);
  const auto r = (i[0] + h[0]).sigmoid(), u = (i[1] + h[1]).sigmoid(), n = (i[2] + r * h[2]).tanh();
  return {n + u * (x - n), at::cat({r, u, n, x, h[2]}, 1)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad, const Tensor& workspace,
                                                                     bool has_bias) {
  const auto w = workspace.chunk(5, 1);
  const auto &r = w[0], &u = w[1], &n = w[2], &x = w[3], &h2 = w[4];
  const auto dn = grad * (1 - u) * (1 - n * n);
  const auto du = grad * (x - n) * u * (1 - u), dr = dn * h2 * r * (1 - r);
  const auto di = at::cat({dr, du, dn}, 1), dh = at::cat({dr, du, dn * r}, 1);
  if (!has_bias) return {di, dh, grad * u, Tensor(), Tensor()};
  return {di, dh, grad * u, di.sum(0), dh.sum(0)};
}

// ---- What Python asks ----------------------------------------------------------------------------------------

std::vector<int64_t> counts() { return {waits, to_device, to_host}; }
void refuse_float64(bool refuse) { refuse_double = refuse; }
Tensor rng_state(int64_t device) { return default_generator(device).get_state(); }
void set_rng_state(int64_t device, const Tensor& state) { default_generator(device).set_state(state); }

TORCH_LIBRARY(leakscope_sim, m) {
  m.def("counts() -> int[]", &counts);
  m.def("refuse_float64(bool refuse) -> ()", &refuse_float64);
  m.def("rng_state(int device) -> Tensor", &rng_state);
  m.def("set_rng_state(int device, Tensor state) -> ()", &set_rng_state);
}
TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>()); }
TORCH_LIBRARY_IMPL(_, AutogradPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("resize_", &resize);
  m.impl("set_.source_Storage", &set_storage);
  m.impl("set_.source_Storage_storage_offset", &set_part);
  m.impl("set_.source_Tensor", &set_tensor);
  m.impl("convolution_overrideable", &convolution);
  m.impl("convolution_backward_overrideable", &convolution_backward);
  // PyTorch's own way to the kernel makes a scalar first and warns that it was resized.
  m.impl("mse_loss", torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
  m.impl("_thnn_fused_gru_cell", &gru_cell);
  m.impl("_thnn_fused_gru_cell_backward", &gru_cell_backward);
}

}  // namespace
