// Kernels as functions of h, the squared distance of points scaled by the driver so that the
// formulas are as short as can be (outputscale apart; L = ln 2, a = sqrt(h)):
//
//   family        points scaled by      k(h)                           dk/dh
//   matern12      log2(e) / l           2^-a                           -L 2^-a / (2 a)
//   matern32      sqrt(3) log2(e) / l   (1 + L a) 2^-a                 -L^2 2^-a / 2
//   matern52      sqrt(5) log2(e) / l   (1 + L a + (L a)^2 / 3) 2^-a   -L^2 (1 + L a) 2^-a / 6
//   rbf           sqrt(log2(e) / 2)/l   2^-h                           -L 2^-h
//   r. quadratic  1 / (l sqrt(2 alpha)) (1 + h)^-alpha                 -alpha (1 + h)^(-alpha - 1)
//   constant                            1                              0
//   linear        1 / l                 -h, with h = -x.z              -1
//
// The rational quadratic's dk/dalpha, scaling included, is k (h / (1 + h) - log(1 + h)).
// Included inside an anonymous namespace of isa.cpp, after simd.h.

constexpr double LN2 = 0.69314718055994530942;

// h of coinciding points, and the least h there is (linear apart): roots need no check for 0.
template <class T>
constexpr T TINY = T(sizeof(T) == 4 ? 1e-30 : 1e-290);

template <Family F, class T>
inline vec<T> value(vec<T> h, T alpha) {
    if constexpr (F == Family::rbf) {
        return exp2_of(-h);
    } else if constexpr (F == Family::rational_quadratic) {
        return exp2_of(-alpha * log2_1p<T>(h));
    } else if constexpr (F == Family::constant) {
        return splat(T(1));
    } else if constexpr (F == Family::linear) {
        return -h;
    } else {
#if defined(__AVX512F__)
        if constexpr (F == Family::matern32) {
            // With an estimate a0 of a, k(a) = k(a0) - L^2 2^-a0 (h - a0^2) / 2 up to (a - a0)^2,
            // less than 1e-8 (1e-16 in double): the last Newton step for a folded into k. y = -a0.
            const vec<T> y = minus_root_estimate(h);
            const vec<T> m = (T(1) - T(LN2) * y) - T(0.5 * LN2 * LN2) * (h - y * y);
            return m * exp2_of(y);
        }
#endif
        const vec<T> a = root(h), e = exp2_of(-a);
        if constexpr (F == Family::matern12) return e;
        const vec<T> b = T(LN2) * a;
        if constexpr (F == Family::matern32) return e * (T(1) + b);
        return e * (T(1) + b + b * b * T(1.0 / 3));
    }
}

// Where all points are within LESS_ONE_REACH of each other, k is next to 1 for all pairs, and what
// tells them apart is in its last digits. There
//
//   k - 1 = sum_j (-b)^j c(j) / j!,  j >= 1,  b = L a (rbf: L h),
//   c(j) = 1 (matern12, rbf),  1 - j (matern32),  1 - j + j (j - 1) / 3 (matern52),
//
// has all of them. c(1) = 0 but for matern12 and rbf.
constexpr int LESS_ONE_TERMS = 12;

template <Family F>
constexpr double less_one_term(int j) {
    double term = 1;
    for (int i = 1; i <= j; ++i) term *= -LN2 / i;
    if (F == Family::matern32) term *= 1 - j;
    if (F == Family::matern52) term *= 1 - j + j * (j - 1) / 3.0;
    return term;
}

template <Family F>
inline vec<float> less_one(vec<float> h) {
    constexpr bool smooth = F == Family::matern32 || F == Family::matern52;
    constexpr int first = smooth ? 2 : 1;
    const vec<float> u = F == Family::rbf ? h : root(h);
    vec<float> sum = splat(static_cast<float>(less_one_term<F>(LESS_ONE_TERMS)));
    for (int j = LESS_ONE_TERMS - 1; j >= first; --j)
        sum = sum * u + static_cast<float>(less_one_term<F>(j));
    return (smooth ? h : u) * sum;
}

template <class T>
struct Slope {
    vec<T> value, by_h, by_alpha;
};

template <Family F, class T>
inline Slope<T> slope(vec<T> h, T alpha) {
    if constexpr (F == Family::rbf) {
        const vec<T> e = exp2_of(-h);
        return {e, T(-LN2) * e, vec<T>{}};
    } else if constexpr (F == Family::rational_quadratic) {
        const vec<T> l = log2_1p<T>(h);
        const vec<T> k = exp2_of(-alpha * l), shrink = T(1) / (T(1) + h);
        // With w = h / (1 + h): w - log(1 + h) = w + log(1 - w) = -(w^2/2 + w^3/3 + ...), which
        // replaces the difference where that cancels.
        const vec<T> w = h * shrink;
        vec<T> series = splat(T(1) / T(10));
        for (int n = 9; n >= 2; --n) series = series * w + T(1) / T(n);
        const vec<T> by_log = w - T(LN2) * l, by_series = -w * w * series;
        return {k, -alpha * k * shrink,
                k * (w < T(sizeof(T) == 4 ? 0.1 : 0.01) ? by_series : by_log)};
    } else if constexpr (F == Family::constant) {
        return {splat(T(1)), vec<T>{}, vec<T>{}};
    } else if constexpr (F == Family::linear) {
        return {-h, splat(T(-1)), vec<T>{}};
    } else {
        const vec<T> a = root(h), e = exp2_of(-a), b = T(LN2) * a;
        if constexpr (F == Family::matern12) {
            // not differentiable at coinciding points: 0 there, as for |x| at 0
            const vec<T> d = T(-0.5 * LN2) * e / vmax(a, splat(T(STEEPEST)));
            return {e, h > TINY<T> ? d : vec<T>{}, vec<T>{}};
        }
        if constexpr (F == Family::matern32)
            return {e * (T(1) + b), T(-0.5 * LN2 * LN2) * e, vec<T>{}};
        const vec<T> c = e * (T(1) + b);
        return {c + e * b * b * T(1.0 / 3), T(-LN2 * LN2 / 6) * c, vec<T>{}};
    }
}
