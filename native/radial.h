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

template <class T>
inline vec<T> positive(vec<T> h) {  // roundoff may leave h just below 0, where root is undefined
    return vmax(h, splat(T(sizeof(T) == 4 ? 1e-30 : 1e-290)));
}

template <Family F, class T>
inline vec<T> value(vec<T> h, T alpha) {
    if constexpr (F == Family::rbf) {
        return exp2_minus(vmax(h, vec<T>{}));
    } else if constexpr (F == Family::rational_quadratic) {
        return exp2_minus(alpha * log2_from_one<T>(T(1) + vmax(h, vec<T>{})));
    } else if constexpr (F == Family::constant) {
        return splat(T(1));
    } else if constexpr (F == Family::linear) {
        return -h;
    } else {
#if defined(__AVX512F__)
        if constexpr (F == Family::matern32 && sizeof(T) == 4) {
            // With the estimate a0 of a, k(a) = k(a0) - L^2 2^-a0 (h - a0^2) / 2 up to
            // (a - a0)^2 < 1e-8: the Newton step for a folded into k.
            const vec<T> g = positive<T>(h), a0 = estimate_root(g);
            const vec<T> m = (T(1) + T(LN2) * a0) - T(0.5 * LN2 * LN2) * (g - a0 * a0);
            return m * exp2_minus(a0);
        }
#endif
        const vec<T> a = root(positive<T>(h)), e = exp2_minus(a);
        if constexpr (F == Family::matern12) return e;
        const vec<T> b = T(LN2) * a;
        if constexpr (F == Family::matern32) return e * (T(1) + b);
        return e * (T(1) + b + b * b * T(1.0 / 3));
    }
}

template <Family F, class T>
inline vec<T> derivative(vec<T> h, T alpha) {
    if constexpr (F == Family::rbf) {
        return T(-LN2) * exp2_minus(vmax(h, vec<T>{}));
    } else if constexpr (F == Family::rational_quadratic) {
        const vec<T> u = T(1) + vmax(h, vec<T>{});
        return -alpha * exp2_minus((alpha + T(1)) * log2_from_one<T>(u));
    } else if constexpr (F == Family::constant) {
        return vec<T>{};
    } else if constexpr (F == Family::linear) {
        return splat(T(-1));
    } else {
        const vec<T> a = root(positive<T>(h)), e = exp2_minus(a);
        if constexpr (F == Family::matern12) {
            // not differentiable at coinciding points: 0 there, as for |x| at 0
            const vec<T> d = T(-0.5 * LN2) * e / a;
            return h > T(0) ? d : vec<T>{};
        }
        if constexpr (F == Family::matern32) return T(-0.5 * LN2 * LN2) * e;
        return T(-LN2 * LN2 / 6) * e * (T(1) + T(LN2) * a);
    }
}

template <class T>
inline vec<T> alpha_derivative(vec<T> h, T alpha) {
    const vec<T> g = vmax(h, vec<T>{}), u = T(1) + g, l = log2_from_one<T>(u);
    return exp2_minus(alpha * l) * (g / u - T(LN2) * l);
}
