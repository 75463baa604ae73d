// One sweep of accelerated coloured block-coordinate descent (abcd.py), fused. Samples are the last axis; LANES of them
// are two vector registers. The patch of a position stays in the first-level cache while all features are worked on.
// Most codes are zero, and stay so: they are marked, and neither read, nor written, nor subtracted.
#include <cstring>
#ifdef __AVX__
#include <immintrin.h>
#endif
#ifdef __AVX512F__
#define WIDTH 16
#else
#define WIDTH 8
#endif
#define LANES (2 * WIDTH)

namespace {

constexpr int TOGETHER = 6;  // features whose sums are held in registers: 12 of 16
typedef float Register __attribute__((vector_size(WIDTH * sizeof(float)), aligned(4)));

struct Vector {
  Register a, b;
};
inline Vector load(const float* from) {
  Vector v;
  std::memcpy(&v, from, sizeof v);
  return v;
}
inline void store(float* to, const Vector& v) { std::memcpy(to, &v, sizeof v); }
inline Vector add(const Vector& x, float w, const Vector& y) { return {x.a + w * y.a, x.b + w * y.b}; }
inline Register shrunk(const Register& v, float threshold, bool nonneg) {
  const Register zero{};
  if (nonneg) return v > zero ? v : zero;
  const Register above = v - threshold, below = v + threshold;
  return above > zero ? above : (below < zero ? below : zero);
}
inline Register magnitude(const Register& v) { return v > Register{} ? v : -v; }
inline Vector plus(const Vector& sum, const Vector& v, bool nonneg) {
  return nonneg ? Vector{sum.a + v.a, sum.b + v.b} : Vector{sum.a + magnitude(v.a), sum.b + magnitude(v.b)};
}
inline bool any(const Vector& v) {
#if defined(__AVX512F__)
  return (_mm512_cmp_ps_mask((__m512)v.a, _mm512_setzero_ps(), _CMP_NEQ_UQ) |
          _mm512_cmp_ps_mask((__m512)v.b, _mm512_setzero_ps(), _CMP_NEQ_UQ)) != 0;
#elif defined(__AVX__)
  return (_mm256_movemask_ps(_mm256_cmp_ps((__m256)v.a, _mm256_setzero_ps(), _CMP_NEQ_UQ)) |
          _mm256_movemask_ps(_mm256_cmp_ps((__m256)v.b, _mm256_setzero_ps(), _CMP_NEQ_UQ))) != 0;
#else
  bool found = false;
  for (int i = 0; i < WIDTH; ++i) found |= v.a[i] != 0 || v.b[i] != 0;
  return found;
#endif
}

// R+ of TOGETHER features, from the patch; `moved` gets Y - R+. `packed` is (size+1)×TOGETHER, the bias last.
inline void step(const float* packed, int size, const Vector* patch, const Vector* point, Vector* fresh, Vector* moved,
                 float threshold, bool nonneg) {
  Register a[TOGETHER], b[TOGETHER];
  for (int f = 0; f < TOGETHER; ++f) {
    a[f] = point[f].a + packed[size * TOGETHER + f];
    b[f] = point[f].b + packed[size * TOGETHER + f];
  }
  for (int d = 0; d < size; ++d) {
    const Register x = patch[d].a, y = patch[d].b;
    for (int f = 0; f < TOGETHER; ++f) {
      const float w = packed[d * TOGETHER + f];
      a[f] += w * x;
      b[f] += w * y;
    }
  }
  for (int f = 0; f < TOGETHER; ++f) {
    fresh[f] = {shrunk(a[f], threshold, nonneg), shrunk(b[f], threshold, nonneg)};
    moved[f] = {point[f].a - fresh[f].a, point[f].b - fresh[f].b};
  }
}

template <int COUNT>
inline void subtract(const float* atoms, const int* active, int size, const Vector* moved, Vector* patch) {
  const float* w[COUNT];
  Vector m[COUNT];
  for (int i = 0; i < COUNT; ++i) w[i] = atoms + active[i] * size, m[i] = moved[active[i]];
  for (int d = 0; d < size; ++d) {
    Vector sum = patch[d];
    for (int i = 0; i < COUNT; ++i) sum = add(sum, w[i][d], m[i]);
    patch[d] = sum;
  }
}

// One block of features (padded to a multiple of TOGETHER) at one position: gives how many codes move, in `active`.
int work(const float* packed, const float* atoms, int features, float threshold, int size, Vector* patch,
         const Vector* point, Vector* fresh, Vector* moved, int* active, bool nonneg) {
  for (int f = 0; f < features; f += TOGETHER)
    step(packed + static_cast<long>(f) * (size + 1), size, patch, point + f, fresh + f, moved + f, threshold, nonneg);
  int count = 0, a = 0;
  for (int f = 0; f < features; ++f) {
    active[count] = f;  // without a branch: which codes move is hard to foretell
    count += any(moved[f]);
  }
  for (; a + 4 <= count; a += 4) subtract<4>(atoms, active + a, size, moved, patch);
  for (; a < count; ++a) subtract<1>(atoms, active + a, size, moved, patch);
  return count;
}

// Features that either array marks, in order.
inline int marked(const unsigned char* one, const unsigned char* other, int features, int* found) {
  int count = 0, f = 0;
  for (; f + 8 <= features; f += 8) {
    unsigned long long x, y;
    std::memcpy(&x, one + f, 8);
    std::memcpy(&y, other + f, 8);
    for (x |= y; x; x &= x - 1) found[count++] = f + (__builtin_ctzll(x) >> 3);  // a mark is 0 or 1
  }
  for (; f < features; ++f)
    if (one[f] | other[f]) found[count++] = f;
  return count;
}

int padded(int features) { return (features + TOGETHER - 1) / TOGETHER * TOGETHER; }

struct Color {  // a sub-lattice of positions, in pixels of the canvas
  int top, left, down, across;
};

struct Shape {
  int blocks, channels, height, width, kh, kw, step_down, step_across, nonneg;
};

struct Codes {  // of one colour: (down·across)×features×LANES, and whether a feature has any that is not zero
  const float* now;
  float* before;
  const unsigned char* now_marks;
  unsigned char* before_marks;
};

// One colour of one group of LANES samples. `error` is C×H×W×LANES.
Vector walk(const Shape& k, const Color& color, float* error, Codes codes, const Vector& ahead,
            const float* const* packed, const float* const* atoms, const int* features, const float* thresholds, int most,
            float* scratch) {
  const int size = k.channels * k.kh * k.kw;
  const long plane = static_cast<long>(k.height) * k.width;
  Vector* patch = reinterpret_cast<Vector*>(scratch);
  Vector *point = patch + size, *fresh = point + most, *moved = fresh + most;
  int *active = reinterpret_cast<int*>(moved + most), *kept = active + most + 1;
  for (int f = 0; f < most; ++f) point[f] = Vector{};
  Vector total{};
  for (int y = 0; y < color.down; ++y)
    for (int x = 0; x < color.across; ++x) {
      const long place = static_cast<long>(color.top + y * k.step_down) * k.width + color.left + x * k.step_across;
      float* corner = error + place * LANES;
      Vector* at = patch;
      for (int c = 0; c < k.channels; ++c)
        for (int i = 0; i < k.kh; ++i)
          for (int j = 0; j < k.kw; ++j)
            *at++ = load(corner + (c * plane + static_cast<long>(i) * k.width + j) * LANES);
      for (int b = 0; b < k.blocks; ++b) {
        const int own = features[b];
        const int held = marked(codes.now_marks, codes.before_marks, own, kept);
        for (int i = 0; i < held; ++i) {
          const int f = kept[i];
          const Vector old = load(codes.before + f * LANES), now = load(codes.now + f * LANES);
          point[f] = {old.a + ahead.a * (now.a - old.a), old.b + ahead.b * (now.b - old.b)};
        }
        const int count = work(packed[b], atoms[b], padded(own), thresholds[b], size, patch, point, fresh, moved,
                               active, k.nonneg != 0);
        for (int i = 0; i < held; ++i) {
          const int f = kept[i];
          store(codes.before + f * LANES, fresh[f]);
          codes.before_marks[f] = any(fresh[f]);
          point[f] = Vector{};  // points are zero wherever no code was
          total = plus(total, fresh[f], k.nonneg != 0);
          moved[f] = Vector{};
        }
        for (int i = 0; i < count; ++i) {  // codes that were zero and are not any more
          const int f = active[i];
          if (!any(moved[f])) continue;
          store(codes.before + f * LANES, fresh[f]);
          codes.before_marks[f] = 1;
          total = plus(total, fresh[f], k.nonneg != 0);
        }
        codes.now += own * LANES;
        codes.before += own * LANES;
        codes.now_marks += own;
        codes.before_marks += own;
      }
      at = patch;
      for (int c = 0; c < k.channels; ++c)
        for (int i = 0; i < k.kh; ++i)
          for (int j = 0; j < k.kw; ++j)
            store(corner + (c * plane + static_cast<long>(i) * k.width + j) * LANES, *at++);
    }
  return total;
}

}  // namespace

extern "C" {

int leakscope_abcd_lanes() { return LANES; }
int leakscope_abcd_together() { return TOGETHER; }
// Floats of scratch space for patches of `size` numbers and blocks of `most` features.
int leakscope_abcd_scratch(int size, int most) { return (size + 3 * padded(most)) * LANES + 2 * (padded(most) + 1); }

// One sweep: all colours of all groups of samples. `error` is groups×C×H×W×LANES; `now[c]` and `before[c]` are
// groups×(down·across)×features×LANES with marks without the lanes, and the new codes replace `before`; `ahead`
// (1 + momentum) and `norm` (the sum of absolute codes) are groups×LANES; `colors` has four numbers each.
void leakscope_abcd_sweep(float* error, const float* const* now, float* const* before,
                          const unsigned char* const* now_marks, unsigned char* const* before_marks, const float* ahead,
                          float* norm, const float* const* packed, const float* const* atoms, const int* features,
                          const float* thresholds, const int* colors, int count, int groups, const int* shape,
                          float* scratch) {
  const Shape k{shape[0], shape[1], shape[2], shape[3], shape[4], shape[5], shape[6], shape[7], shape[8]};
  const long canvas = static_cast<long>(k.channels) * k.height * k.width * LANES;
  long all = 0;
  int most = 0;
  for (int b = 0; b < k.blocks; ++b) {
    all += features[b];
    most = padded(features[b]) > most ? padded(features[b]) : most;
  }
  for (int g = 0; g < groups; ++g) {
    const Vector farther = load(ahead + g * LANES);
    Vector total{};
    for (int c = 0; c < count; ++c) {
      const Color color{colors[4 * c], colors[4 * c + 1], colors[4 * c + 2], colors[4 * c + 3]};
      const long skip = static_cast<long>(g) * color.down * color.across * all;
      const Codes codes{now[c] + skip * LANES, before[c] + skip * LANES, now_marks[c] + skip, before_marks[c] + skip};
      const Vector own = walk(k, color, error + g * canvas, codes, farther, packed, atoms, features, thresholds, most, scratch);
      total = {total.a + own.a, total.b + own.b};
    }
    store(norm + g * LANES, total);
  }
}
}
