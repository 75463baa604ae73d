// The runtime of the simulated accelerator: memory, devices, random numbers. simulated.cpp has its operators.
#pragma once
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

namespace {

using at::Device;
using at::DispatchKeySet;
using at::Generator;
using at::Tensor;
using c10::DeviceIndex;
using Sizes = c10::SymIntArrayRef;
template <typename T> using Maybe = std::optional<T>;

constexpr auto SIM = c10::DeviceType::PrivateUse1;
constexpr auto KEY = c10::DispatchKey::PrivateUse1;
constexpr DeviceIndex DEVICES = 2;

thread_local DeviceIndex current = 0;
std::atomic<bool> refuse_double{false};
std::atomic<int64_t> waits{0}, to_device{0}, to_host{0};

bool ours(const Tensor& t) { return t.defined() && t.device().type() == SIM; }

void check_dtype(c10::ScalarType type) {
  const bool wide = type == at::kDouble || type == at::kComplexDouble;
  TORCH_CHECK_TYPE(!(wide && refuse_double), "this device has no float64; compute in float32 or on the CPU");
}

// ---- Memory -------------------------------------------------------------------------------------------------

struct Memory final : c10::Allocator {
  at::DataPtr allocate(size_t bytes) override {
    void* start = bytes ? std::aligned_alloc(64, (bytes + 63) / 64 * 64) : nullptr;
    if (start) std::memset(start, 0xFF, bytes);  // every float is NaN: memory that nobody wrote is noticed
    return {start, start, &std::free, Device(SIM, current)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};
Memory memory;
REGISTER_ALLOCATOR(SIM, &memory)

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return SIM; }
  Device exchangeDevice(Device d) const override {
    const auto before = getDevice();
    setDevice(d);
    return before;
  }
  Device getDevice() const override { return Device(SIM, current); }
  void setDevice(Device d) const override {
    if (d.index() >= 0) current = d.index();
  }
  void uncheckedSetDevice(Device d) const noexcept override {
    if (d.index() >= 0) current = d.index();
  }
  c10::Stream getStream(Device d) const override {
    return c10::Stream(c10::Stream::DEFAULT, Device(SIM, d.index() < 0 ? current : d.index()));
  }
  c10::Stream getDefaultStream(Device d) const override { return getStream(d); }
  c10::Stream exchangeStream(c10::Stream s) const override { return s; }
  DeviceIndex deviceCount() const noexcept override { return DEVICES; }
  // Work is finished when an operator returns, so there is nothing to record or to wait for.
  void record(void**, const c10::Stream&, const DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override { ++waits; }
  void destroyEvent(void*, const DeviceIndex) const noexcept override {}
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

// ---- Random numbers: a CPU generator that belongs to a device, so a seed draws the CPU's numbers -------------

struct SimGenerator final : c10::GeneratorImpl {
  Generator inner;
  explicit SimGenerator(DeviceIndex i, Generator g = at::detail::createCPUGenerator())
      : GeneratorImpl(Device(SIM, i), DispatchKeySet(KEY)), inner(std::move(g)) {}
  void set_current_seed(uint64_t seed) override { inner.set_current_seed(seed); }
  void set_offset(uint64_t) override {}
  uint64_t get_offset() const override { return 0; }
  uint64_t current_seed() const override { return inner.current_seed(); }
  uint64_t seed() override { return inner.seed(); }
  void set_state(const c10::TensorImpl& state) override { inner.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return inner.unsafeGetGeneratorImpl()->get_state();
  }
  SimGenerator* clone_impl() const override { return new SimGenerator(device().index(), inner.clone()); }
};

Generator& default_generator(DeviceIndex i) {
  static Generator made[DEVICES] = {at::make_generator<SimGenerator>(0), at::make_generator<SimGenerator>(1)};
  return made[i < 0 ? current : i];
}
Generator& inner_of(Generator& g) { return static_cast<SimGenerator*>(g.unsafeGetGeneratorImpl())->inner; }

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return DEVICES; }
  DeviceIndex getCurrentDevice() const override { return current; }
  void setCurrentDevice(DeviceIndex i) const override { current = i; }
  DeviceIndex exchangeDevice(DeviceIndex i) const override { return std::exchange(current, i); }
  DeviceIndex maybeExchangeDevice(DeviceIndex i) const override { return std::exchange(current, i < 0 ? current : i); }
  Generator getNewGenerator(DeviceIndex i) const override {
    return at::make_generator<SimGenerator>(i < 0 ? current : i);
  }
  const Generator& getDefaultGenerator(DeviceIndex i) const override { return default_generator(i); }
  void resizePrivateUse1Bytes(const c10::Storage& s, size_t bytes) const override {
    const c10::DeviceGuard on(s.device());
    auto fresh = memory.allocate(bytes);
    if (s.nbytes()) std::memcpy(fresh.get(), s.data(), std::min(bytes, s.nbytes()));
    s.unsafeGetStorageImpl()->set_data_ptr(std::move(fresh));
    s.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
};
Hooks hooks;
[[maybe_unused]] const bool hooked = (at::RegisterPrivateUse1HooksInterface(&hooks), true);

}  // namespace
