#pragma once

// What the C++ tests share: checks that name their line and go on, named cases, an exit status that says what failed.

#include <cstdarg>
#include <cstdio>
#include <string>

namespace check {

struct state {
    int n_checks = 0;
    int n_failed = 0;
    std::string name; // of the running case
};

inline state & get() {
    static state s;
    return s;
}

// Counts a check; prints the first failures of a program in full.
inline bool that(bool ok, const char * file, int line, const char * expr);

#if defined(__GNUC__)
__attribute__((format(printf, 5, 6)))
#endif
inline bool
that(bool ok, const char * file, int line, const char * expr, const char * format, ...) {
    state & s = get();
    s.n_checks++;
    if (ok) {
        return true;
    }
    if (++s.n_failed <= 40) {
        printf("FAIL %s:%d [%s] %s", file, line, s.name.c_str(), expr);
        printf(*format ? ": " : "");
        va_list args;
        va_start(args, format);
        vprintf(format, args);
        va_end(args);
        printf("\n");
        fflush(stdout);
    }
    return false;
}

inline bool that(bool ok, const char * file, int line, const char * expr) {
    return that(ok, file, line, expr, "%s", "");
}

// Names the checks that follow.
inline void begin(const std::string & name) {
    get().name = name;
}

inline int finish() {
    const state & s = get();
    printf("%d checks, %d failed\n", s.n_checks, s.n_failed);
    // a program that checked nothing has not passed
    return s.n_failed == 0 && s.n_checks > 0 ? 0 : 1;
}

} // namespace check

// CHECK(condition) or CHECK(condition, "found %d", value): false when it failed
#define CHECK(cond, ...) check::that((cond), __FILE__, __LINE__, #cond, ##__VA_ARGS__)
