/* Text of a log line being read: a hash of a token, and a double as its digits say it, whatever the locale.
 *
 * The hash compares lines of two files within one process. It is neither stored nor shown, and nobody is trusted with
 * collisions: 64 bits over some million lines.
 */
#ifndef MR_LINE_TEXT_H
#define MR_LINE_TEXT_H

#include <locale.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static inline uint64_t mr_mix(uint64_t hash, uint64_t word)
{
    unsigned __int128 product = (unsigned __int128)(hash ^ 0x9e3779b97f4a7c15ULL) * (word ^ 0xd6e8feb86659fd93ULL);
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline uint64_t mr_hash_text(const char *text, size_t size)
{
    uint64_t hash = size, word;
    uint32_t low, high;

    for (; size >= 8; text += 8, size -= 8) {
        memcpy(&word, text, 8);
        hash = mr_mix(hash, word);
    }
    /* The rest by loads of fixed size, which may overlap: a copy of unknown length is a call. */
    if (size >= 4) {
        memcpy(&low, text, 4);
        memcpy(&high, text + size - 4, 4);
        return mr_mix(hash, (uint64_t)high << 32 | low);
    }
    if (size > 0)
        return mr_mix(hash, (uint64_t)(unsigned char)text[0] << 16 | (uint64_t)(unsigned char)text[size / 2] << 8
                                | (unsigned char)text[size - 1]);
    return hash;
}

#define MR_EACH_BYTE(byte) (0x0101010101010101ULL * (byte))
#define MR_HAS_ZERO(word) (((word) - MR_EACH_BYTE(1)) & ~(word) & MR_EACH_BYTE(0x80))

/* Behind the closing quote of the string that opens at `at`; NULL where it never closes. */
static inline const char *mr_string_end(const char *at, const char *end)
{
    uint64_t word;

    at += 1;
    for (;;) {
        for (; end - at >= 8; at += 8) {
            memcpy(&word, at, 8);
            if (MR_HAS_ZERO(word ^ MR_EACH_BYTE('"')) | MR_HAS_ZERO(word ^ MR_EACH_BYTE('\\')))
                break;
        }
        while (at < end && *at != '"' && *at != '\\')
            at += 1;
        if (at >= end)
            return NULL;
        if (*at == '"')
            return at + 1;
        at += 2;
        if (at >= end)
            return NULL;
    }
}

/* How often a byte occurs; in pieces whose counts fit into bytes, which compilers turn into vectors. */
static inline ptrdiff_t mr_count_byte(const char *text, ptrdiff_t size, char byte)
{
    ptrdiff_t count = 0, start, i;

    for (start = 0; start < size; start += 255) {
        unsigned char piece = 0;
        ptrdiff_t stop = size - start < 255 ? size : start + 255;
        for (i = start; i < stop; ++i)
            piece += text[i] == byte;
        count += piece;
    }
    return count;
}

/* The double that a number of at most 63 characters reads as; 0 when it is none. The host may have set any locale. */
static inline int mr_read_double(const char *text, size_t size, double *value)
{
    static locale_t plain = (locale_t)0;
    char number[64], *end;

    if (size == 0 || size >= sizeof number)
        return 0;
    if (plain == (locale_t)0 && (plain = newlocale(LC_ALL_MASK, "C", (locale_t)0)) == (locale_t)0)
        return 0;
    memcpy(number, text, size);
    number[size] = '\0';
    *value = strtod_l(number, &end, plain);
    return end == number + size;
}

#endif
