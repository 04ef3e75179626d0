// One copy past the cache. An ordinary copy first reads the lines that it is about to overwrite, and puts out of
// the cache what the training has there; of a state that is larger than the cache neither does any good.

#include <cstddef>
#include <cstdint>
#include <cstring>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

extern "C" void loom_copy_past_cache(char *to, const char *from, size_t length) {
#if defined(__SSE2__)
  size_t odd = -reinterpret_cast<uintptr_t>(to) & 15;
  if (odd < length) {
    std::memcpy(to, from, odd);
    to += odd, from += odd, length -= odd;
    for (; length >= 64; length -= 64, to += 64, from += 64) {
      auto source = reinterpret_cast<const __m128i *>(from);
      auto target = reinterpret_cast<__m128i *>(to);
      __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
      __m128i c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
      _mm_stream_si128(target, a), _mm_stream_si128(target + 1, b);
      _mm_stream_si128(target + 2, c), _mm_stream_si128(target + 3, d);
    }
    _mm_sfence();  // whoever is told that the copy is made sees it
  }
#endif
  std::memcpy(to, from, length);
}
