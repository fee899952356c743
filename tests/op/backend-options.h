#pragma once

// The command line of test-backend-ridgefill, and a backend made as it says.

#include "op-case.h"

#include <cstdlib>

struct options {
    std::string mode = "test";
    std::string backend;
    std::vector<std::pair<int64_t, int64_t>> shapes = {{576, 576}, {4096, 4096}, {10240, 2560}};
    std::vector<int64_t> rows = {1, 32, 128, 512, 2048};
    int n_threads = 2;
    double seconds = 0.5; // per shape, row count and type
    bool best = false;
    std::string csv, json;
    std::string x; // file
    int64_t x_width = 0;
};

// NULL and a line on stderr when it does not start
inline ggml_backend_ptr open_backend(ggml_backend_dev_t dev, int n_threads) {
    ggml_backend_ptr backend(ggml_backend_dev_init(dev, nullptr));
    if (!backend) {
        fprintf(stderr, "%s: does not start\n", ggml_backend_dev_name(dev));
        return backend;
    }
    auto set_n_threads = (ggml_backend_set_n_threads_t
    ) ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(dev), "ggml_backend_set_n_threads");
    if (set_n_threads) {
        set_n_threads(backend.get(), n_threads);
    }
    return backend;
}

[[noreturn]] static void usage(const std::string & problem) {
    fprintf(
        stderr,
        "test-backend-ridgefill: %s\n"
        "hint: [test|support|perf] [-b BACKEND] [-x FILE:WIDTH] [-s KxN,...] [-r ROWS,...] [-t THREADS] [--time S] "
        "[--best] [--csv F] "
        "[--json F]\n",
        problem.c_str()
    );
    exit(2);
}

inline std::vector<std::string> split(const std::string & text) {
    std::vector<std::string> parts;
    for (size_t begin = 0; begin <= text.size();) {
        const size_t end = std::min(text.find(',', begin), text.size());
        parts.push_back(text.substr(begin, end - begin));
        begin = end + 1;
    }
    return parts;
}

inline options parse(int argc, char ** argv) {
    options opt;
    for (int i = 1; i < argc; i++) {
        const std::string arg = argv[i];
        if (arg == "test" || arg == "support" || arg == "perf") {
            opt.mode = arg;
            continue;
        }
        if (arg == "--best") {
            opt.best = true;
            continue;
        }
        if (i + 1 == argc) {
            usage("unknown mode or missing value: " + arg);
        }
        const std::string value = argv[++i];
        if (arg == "-b") {
            opt.backend = value;
        } else if (arg == "-t") {
            opt.n_threads = atoi(value.c_str());
        } else if (arg == "--time") {
            opt.seconds = atof(value.c_str());
        } else if (arg == "-x") {
            const size_t colon = value.rfind(':');
            opt.x = value.substr(0, colon);
            opt.x_width = colon == std::string::npos ? 0 : atoll(value.c_str() + colon + 1);
            if (opt.x_width < 32 || opt.x_width % 32) {
                usage("bad width: " + value);
            }
        } else if (arg == "--csv") {
            opt.csv = value;
        } else if (arg == "--json") {
            opt.json = value;
        } else if (arg == "-r") {
            opt.rows.clear();
            for (const std::string & part : split(value)) {
                opt.rows.push_back(atoll(part.c_str()));
                if (opt.rows.back() < 1) {
                    usage("bad row count: " + part);
                }
            }
        } else if (arg == "-s") {
            opt.shapes.clear();
            for (const std::string & part : split(value)) {
                long long k = 0, n = 0;
                if (sscanf(part.c_str(), "%lldx%lld", &k, &n) != 2 || k < 32 || k % 32 || n < 1) {
                    usage("bad shape: " + part);
                }
                opt.shapes.push_back({k, n});
            }
        } else {
            usage("unknown option: " + arg);
        }
    }
    if (opt.n_threads < 1) {
        usage("bad thread count");
    }
    return opt;
}
