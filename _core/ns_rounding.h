/* Durations in whole nanoseconds, exactly: no rounding of a floating-point step decides one.
 *
 * A number of seconds is rounded to whole nanoseconds, to nearest, ties to even, on the exact binary
 * value of the double (spec: engine section 5.4). 128-bit integers hold every product involved:
 * mantissa < 2^53, times 10^9 < 2^83, shifted left by at most 11 for seconds below 2^64.
 */
#ifndef MR_NS_ROUNDING_H
#define MR_NS_ROUNDING_H

#include <math.h>
#include <stdint.h>
#include <string.h>

typedef unsigned __int128 mr_u128;

/* Nanoseconds of `seconds`; *ok becomes 0 when it is negative, not finite or 2^64 seconds and more. */
static inline mr_u128 mr_seconds_to_ns(double seconds, int *ok)
{
    uint64_t bits, mantissa;
    int exponent, down;
    mr_u128 product, quotient, rest, half;
    double ns, fraction;

    if (seconds >= 0.0 && seconds < 8000.0) {
        /* The product is off by less than 0.001 here, so only a fraction near one half needs the exact way. */
        ns = seconds * 1e9;
        fraction = ns - (double)(int64_t)ns;
        if (fabs(fraction - 0.5) > 0.001)
            return (mr_u128)(int64_t)(ns + 0.5);
    }
    if (!(seconds >= 0.0) || seconds >= 18446744073709551616.0) {
        *ok = 0;
        return 0;
    }
    memcpy(&bits, &seconds, sizeof bits);
    exponent = (int)(bits >> 52) & 0x7ff;
    mantissa = bits & 0xfffffffffffffULL;
    if (exponent == 0)
        return 0; /* zero or subnormal */
    mantissa |= 0x10000000000000ULL;
    product = (mr_u128)mantissa * 1000000000u;
    exponent -= 1075;
    if (exponent >= 0)
        return product << exponent;
    down = -exponent;
    if (down > 90)
        return 0; /* below half a nanosecond */
    quotient = product >> down;
    rest = product - (quotient << down);
    half = (mr_u128)1 << (down - 1);
    if (rest > half || (rest == half && (quotient & 1)))
        quotient += 1;
    return quotient;
}

static inline double mr_ns_to_seconds(mr_u128 ns)
{
    if (ns >> 64)
        return (double)(uint64_t)(ns / 1000000000u) + (double)(uint32_t)(ns % 1000000000u) / 1e9;
    return (double)((uint64_t)ns / 1000000000u) + (double)((uint64_t)ns % 1000000000u) / 1e9;
}

/* A modelled duration [ms] scaled by a speed-up ratio (0 = unscaled); *ok becomes 0 out of range. */
static inline double mr_scaled_ms(double raw_ms, double ratio, int *ok)
{
    mr_u128 ns = mr_seconds_to_ns(raw_ms / 1000.0, ok);
    double seconds, ms;

    /* Below 2^52 ns the nearest double of a number of seconds leads back to the same ns. */
    if (ratio > 0.0 && ns > 0 && (ratio != 1.0 || ns >> 52))
        ns = mr_seconds_to_ns(mr_ns_to_seconds(ns) / ratio, ok);
    seconds = mr_ns_to_seconds(ns);
    ms = seconds * 1000.0;
    if (ms / 1000.0 == seconds && !(ns >> 52))
        return ms;
    return mr_ns_to_seconds(mr_seconds_to_ns(ms / 1000.0, ok)) * 1000.0;
}

/* Population variance of k integers from exact moments. */
static inline double mr_variance(int64_t k, mr_u128 sum, mr_u128 sum_sq)
{
    mr_u128 spread;

    if (k <= 0)
        return 0.0;
    spread = (mr_u128)k * sum_sq - sum * sum;
    return (double)spread / (double)k / (double)k;
}

#endif
