// Vectors of one instruction set, by GCC and Clang vector extensions.
//
// Included inside an anonymous namespace of isa.cpp only: nothing here may have external
// linkage, or the linker could hand AVX-512 code to the baseline build.

#if defined(__AVX512F__)
#define MEGAGP_VECTOR_BYTES 64
#elif defined(__AVX2__)
#define MEGAGP_VECTOR_BYTES 32
#else
#define MEGAGP_VECTOR_BYTES 16
#endif

template <class T>
struct Simd;

template <>
struct Simd<float> {
    typedef float vec __attribute__((vector_size(MEGAGP_VECTOR_BYTES), may_alias));
    typedef int32_t ivec __attribute__((vector_size(MEGAGP_VECTOR_BYTES), may_alias));
    static constexpr int lanes = MEGAGP_VECTOR_BYTES / 4;
};

template <>
struct Simd<double> {
    typedef double vec __attribute__((vector_size(MEGAGP_VECTOR_BYTES), may_alias));
    typedef int64_t ivec __attribute__((vector_size(MEGAGP_VECTOR_BYTES), may_alias));
    static constexpr int lanes = MEGAGP_VECTOR_BYTES / 8;
};

template <class T>
using vec = typename Simd<T>::vec;
template <class T>
constexpr int LANES = Simd<T>::lanes;

template <class T>
inline vec<T> load(const T* p) {
    return *reinterpret_cast<const vec<T>*>(p);
}
template <class T>
inline void store(T* p, vec<T> v) {
    *reinterpret_cast<vec<T>*>(p) = v;
}
template <class T>
inline vec<T> splat(T x) {
    return x - vec<T>{};
}
// Whether any lane of v is below `limit`.
inline bool any_below(vec<float> v, float limit) {
#if defined(__AVX512F__)
    return _mm512_cmp_ps_mask((__m512)v, _mm512_set1_ps(limit), _CMP_LT_OQ) != 0;
#elif defined(__AVX2__)
    return _mm256_movemask_ps(_mm256_cmp_ps((__m256)v, _mm256_set1_ps(limit), _CMP_LT_OQ)) != 0;
#else
    bool any = false;
    for (int l = 0; l < LANES<float>; ++l) any |= v[l] < limit;
    return any;
#endif
}
inline bool any_below(vec<double> v, double limit) {
#if defined(__AVX512F__)
    return _mm512_cmp_pd_mask((__m512d)v, _mm512_set1_pd(limit), _CMP_LT_OQ) != 0;
#elif defined(__AVX2__)
    return _mm256_movemask_pd(_mm256_cmp_pd((__m256d)v, _mm256_set1_pd(limit), _CMP_LT_OQ)) != 0;
#else
    bool any = false;
    for (int l = 0; l < LANES<double>; ++l) any |= v[l] < limit;
    return any;
#endif
}
// The lanes, which hold partial sums, added up in double (after halving their number in float,
// where the hardware would be slow otherwise).
template <class T>
inline double hsum(vec<T> v) {
#if defined(__AVX512DQ__)
    if constexpr (sizeof(T) == 4) {
        const __m512 w = (__m512)v;
        const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(w), _mm512_extractf32x8_ps(w, 1));
        return _mm512_reduce_add_pd(_mm512_cvtps_pd(half));
    } else {
        return _mm512_reduce_add_pd((__m512d)v);
    }
#else
    double s = 0;
    for (int l = 0; l < LANES<T>; ++l) s += static_cast<double>(v[l]);
    return s;
#endif
}
// out[r] += the sum of the lanes of v[r], r < R: a transposition by halves.
#if defined(__AVX512DQ__)
template <int R>
inline void add_lanes(const vec<float>* v, float* out) {
    static_assert(R == 8, "as many as fill half a vector");
    __m512 quad[2];  // of four rows each, quarters of their sums
    for (int h = 0; h < 2; ++h) {
        __m512d pair[2];
        for (int p = 0; p < 2; ++p) {
            const __m512 a = (__m512)v[4 * h + 2 * p], b = (__m512)v[4 * h + 2 * p + 1];
            pair[p] = (__m512d)(_mm512_unpacklo_ps(a, b) + _mm512_unpackhi_ps(a, b));
        }
        quad[h] = (__m512)_mm512_unpacklo_pd(pair[0], pair[1]) +
                  (__m512)_mm512_unpackhi_pd(pair[0], pair[1]);
    }
    const __m512 half =
        _mm512_shuffle_f32x4(quad[0], quad[1], 0x88) + _mm512_shuffle_f32x4(quad[0], quad[1], 0xdd);
    const __m512 sum =
        _mm512_shuffle_f32x4(half, half, 0x08) + _mm512_shuffle_f32x4(half, half, 0x0d);
    _mm256_storeu_ps(out, _mm256_loadu_ps(out) + _mm512_castps512_ps256(sum));
}
template <int R>
inline void add_lanes(const vec<double>* v, double* out) {
    static_assert(R == 8, "as many as fill a vector");
    __m512d pair[4], quad[2];
    for (int p = 0; p < 4; ++p) {
        const __m512d a = (__m512d)v[2 * p], b = (__m512d)v[2 * p + 1];
        pair[p] = _mm512_unpacklo_pd(a, b) + _mm512_unpackhi_pd(a, b);
    }
    for (int h = 0; h < 2; ++h)
        quad[h] = _mm512_shuffle_f64x2(pair[2 * h], pair[2 * h + 1], 0x88) +
                  _mm512_shuffle_f64x2(pair[2 * h], pair[2 * h + 1], 0xdd);
    const __m512d sum =
        _mm512_shuffle_f64x2(quad[0], quad[1], 0x88) + _mm512_shuffle_f64x2(quad[0], quad[1], 0xdd);
    _mm512_storeu_pd(out, _mm512_loadu_pd(out) + sum);
}
#elif defined(__AVX2__)
template <int R>
inline void add_lanes(const vec<float>* v, float* out) {
    static_assert(R == 4, "as many as fill half a vector");
    const __m256 pairs[2] = {_mm256_hadd_ps((__m256)v[0], (__m256)v[1]),
                             _mm256_hadd_ps((__m256)v[2], (__m256)v[3])};
    const __m256 half = _mm256_hadd_ps(pairs[0], pairs[1]);
    const __m128 sum = _mm256_castps256_ps128(half) + _mm256_extractf128_ps(half, 1);
    _mm_storeu_ps(out, _mm_loadu_ps(out) + sum);
}
template <int R>
inline void add_lanes(const vec<double>* v, double* out) {
    static_assert(R == 4, "as many as fill a vector");
    const __m256d a = _mm256_hadd_pd((__m256d)v[0], (__m256d)v[1]),
                  b = _mm256_hadd_pd((__m256d)v[2], (__m256d)v[3]);
    const __m256d sum = _mm256_permute2f128_pd(a, b, 0x20) + _mm256_permute2f128_pd(a, b, 0x31);
    _mm256_storeu_pd(out, _mm256_loadu_pd(out) + sum);
}
#else
template <int R, class V, class T>
inline void add_lanes(const V* v, T* out) {
    for (int r = 0; r < R; ++r)
        for (int l = 0; l < LANES<T>; ++l) out[r] += v[r][l];
}
#endif
// Keeps a vector that is used twice in a register: GCC would load it twice.
template <class V>
inline V keep(V v) {
#if defined(__AVX512F__) || defined(__AVX2__)
    asm("" : "+v"(v));
#endif
    return v;
}
// Not as a < b ? a : b: GCC keeps that as a comparison and a blend.
#if defined(__AVX512F__)
inline vec<float> vmin(vec<float> a, vec<float> b) {
    return (vec<float>)_mm512_min_ps((__m512)a, (__m512)b);
}
inline vec<float> vmax(vec<float> a, vec<float> b) {
    return (vec<float>)_mm512_max_ps((__m512)a, (__m512)b);
}
inline vec<double> vmin(vec<double> a, vec<double> b) {
    return (vec<double>)_mm512_min_pd((__m512d)a, (__m512d)b);
}
inline vec<double> vmax(vec<double> a, vec<double> b) {
    return (vec<double>)_mm512_max_pd((__m512d)a, (__m512d)b);
}
#elif defined(__AVX2__)
inline vec<float> vmin(vec<float> a, vec<float> b) {
    return (vec<float>)_mm256_min_ps((__m256)a, (__m256)b);
}
inline vec<float> vmax(vec<float> a, vec<float> b) {
    return (vec<float>)_mm256_max_ps((__m256)a, (__m256)b);
}
inline vec<double> vmin(vec<double> a, vec<double> b) {
    return (vec<double>)_mm256_min_pd((__m256d)a, (__m256d)b);
}
inline vec<double> vmax(vec<double> a, vec<double> b) {
    return (vec<double>)_mm256_max_pd((__m256d)a, (__m256d)b);
}
#elif defined(__SSE2__)
inline vec<float> vmin(vec<float> a, vec<float> b) {
    return (vec<float>)_mm_min_ps((__m128)a, (__m128)b);
}
inline vec<float> vmax(vec<float> a, vec<float> b) {
    return (vec<float>)_mm_max_ps((__m128)a, (__m128)b);
}
inline vec<double> vmin(vec<double> a, vec<double> b) {
    return (vec<double>)_mm_min_pd((__m128d)a, (__m128d)b);
}
inline vec<double> vmax(vec<double> a, vec<double> b) {
    return (vec<double>)_mm_max_pd((__m128d)a, (__m128d)b);
}
#else
template <class V>
inline V vmin(V a, V b) {
    return a < b ? a : b;
}
template <class V>
inline V vmax(V a, V b) {
    return a > b ? a : b;
}
#endif

// sqrt(h) for h >= 1e-30 (float) or 1e-290 (double): estimate of 1/sqrt, then Newton steps
// a += a (1 - a y) / 2 where the hardware's own square root is slower than that.
#if defined(__AVX512F__)
inline vec<float> minus_root_estimate(vec<float> h) {  // relative error below 2^-14
    return vec<float>{} - h * (vec<float>)_mm512_rsqrt14_ps((__m512)h);
}
inline vec<double> minus_root_estimate(vec<double> h) {  // below 2^-27, after a Newton step
    const vec<double> y = (vec<double>)_mm512_rsqrt14_pd((__m512d)h);
    return vec<double>{} - h * (y + 0.5 * y * (1.0 - (h * y) * y));
}
#endif

inline vec<float> root(vec<float> h) {
#if defined(__AVX512F__)
    const vec<float> y = (vec<float>)_mm512_rsqrt14_ps((__m512)h);
    const vec<float> a = h * y;
    return a + 0.5f * a * (1.0f - a * y);
#elif defined(__AVX2__)
    const vec<float> y = (vec<float>)_mm256_rsqrt_ps((__m256)h);
    const vec<float> a = h * y;
    return a + 0.5f * a * (1.0f - a * y);
#elif defined(__SSE2__)
    const vec<float> y = (vec<float>)_mm_rsqrt_ps((__m128)h);
    const vec<float> a = h * y;
    return a + 0.5f * a * (1.0f - a * y);
#else
    vec<float> a;
    for (int l = 0; l < LANES<float>; ++l) a[l] = __builtin_sqrtf(h[l]);
    return a;
#endif
}

inline vec<double> root(vec<double> h) {
#if defined(__AVX512F__)
    vec<double> y = (vec<double>)_mm512_rsqrt14_pd((__m512d)h);  // 2^-14, then 2^-27, 2^-53
    y = y + 0.5 * y * (1.0 - (h * y) * y);
    const vec<double> a = h * y;
    return a + 0.5 * y * (h - a * a);
#elif defined(__AVX2__)
    return (vec<double>)_mm256_sqrt_pd((__m256d)h);
#elif defined(__SSE2__)
    return (vec<double>)_mm_sqrt_pd((__m128d)h);
#else
    vec<double> a;
    for (int l = 0; l < LANES<double>; ++l) a[l] = __builtin_sqrt(h[l]);
    return a;
#endif
}

// 2^y for y <= 0, exactly 1 at 0 and just below, 0 beyond the exponent range. 2^g = 1 + g q(g) with
// q minimax: relative error 2e-9 before rounding (float, degree 6) and 6e-16 (double, degree 10).
// At degree 5 it would be 9e-8, three times the error of rounding, which solves would feel.
// On [0, 1) the float polynomial is also exactly 2 at 1, so that y -> -0 is continuous.
inline vec<float> exp2_of(vec<float> y) {
#if defined(__AVX512DQ__)
    const vec<float> g = (vec<float>)_mm512_reduce_ps((__m512)y, 0x09);  // y - floor(y)
    vec<float> q = 0.00021918828133493662f * g + 0.0012384805595502257f;
    q = q * g + 0.009683705866336823f;
    q = q * g + 0.05548162758350372f;
    q = q * g + 0.240229994058609f;
    q = q * g + 0.6931470036506653f;
    q = q * g + 1.0f;
    return (vec<float>)_mm512_scalef_ps((__m512)q, (__m512)y);
#else
    typedef typename Simd<float>::ivec ivec;
    y = vmax(y, splat(-126.0f));
    const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
    const vec<float> m = magic + y;
    const vec<float> g = y - (m - magic);  // in [-1/2, 1/2]
    vec<float> q = 0.00015326471475418657f * g + 0.0013390806270763278f;
    q = q * g + 0.009618505835533142f;
    q = q * g + 0.05550359934568405f;
    q = q * g + 0.24022647738456726f;
    q = q * g + 0.6931471824645996f;
    q = q * g + 1.0f;
    return (vec<float>)((ivec)q + ((ivec)m << 23));
#endif
}

inline vec<double> exp2_of(vec<double> y) {
#if defined(__AVX512DQ__)
    const vec<double> g = (vec<double>)_mm512_reduce_pd((__m512d)y, 0x08);  // y - round(y)
#else
    typedef typename Simd<double>::ivec ivec;
    y = vmax(y, splat(-1020.0));
    const double magic = 6755399441055744.0;  // 1.5 * 2^52
    const vec<double> m = magic + y;
    const vec<double> g = y - (m - magic);
#endif
    vec<double> q = 7.07097786650813856e-9 * g + 1.02059054137655958e-7;
    q = q * g + 1.32154516332214344e-6;
    q = q * g + 0.0000152526729248507364;
    q = q * g + 0.000154035304247765276;
    q = q * g + 0.00133335582007945926;
    q = q * g + 0.00961812910761866557;
    q = q * g + 0.055504108664651672;
    q = q * g + 0.240226506959100761;
    q = q * g + 0.693147180559946159;
    q = q * g + 1.0;
#if defined(__AVX512DQ__)
    return (vec<double>)_mm512_scalef_pd((__m512d)q, (__m512d)(y - g));
#else
    return (vec<double>)((ivec)q + ((ivec)m << 52));
#endif
}

// log2(x) for normal x >= 1: exponent, then the atanh series of the mantissa in [1/sqrt2, sqrt2).
template <class T>
inline vec<T> log2_from_one(vec<T> x) {
    typedef typename Simd<T>::ivec ivec;
    constexpr bool single = sizeof(T) == 4;
    constexpr int bits = single ? 23 : 52;
    const ivec offset = (ivec)splat(T(0.70710678118654752440));
    const ivec shifted = (ivec)x - offset;
    const ivec e = shifted >> bits;
    const vec<T> m = (vec<T>)((ivec)x - (e << bits));
    const vec<T> u = (m - T(1)) / (m + T(1)), w = u * u;
    constexpr int terms = single ? 5 : 11;
    vec<T> s = splat(T(1) / T(2 * terms - 1));
    for (int k = terms - 2; k >= 0; --k) s = s * w + T(1) / T(2 * k + 1);
    const vec<T> exponent = __builtin_convertvector(e, vec<T>);
    return exponent + T(2.88539008177792681472) * u * s;
}

// log2(1 + h) for h >= 0, with the digits that 1 + h loses put back to first order.
template <class T>
inline vec<T> log2_1p(vec<T> h) {
    const vec<T> u = T(1) + h;
    return log2_from_one<T>(u) + T(1.44269504088896340736) * (h - (u - T(1))) / u;
}
