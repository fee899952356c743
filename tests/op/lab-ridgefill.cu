// The kernels of ggml-ridgefill/cuda alone on an NVIDIA device, without ggml: seconds to build, for work on them.
//
//   nvcc -std=c++17 -O3 -use_fast_math -arch=native -Iggml-ridgefill/cuda -o lab tests/op/lab-ridgefill.cu
//        ggml-ridgefill/cuda/ridgefill-hopper.cu -lcublas
//   Hopper: -DRIDGEFILL_HOPPER -gencode=arch=compute_90a,code=sm_90a instead of -arch=native
//
//   lab check      every path against float64 and against the arithmetic in f32, poisoned results and work memory
//   lab few        check with few shapes, for compute-sanitizer (racecheck: build with -DRIDGEFILL_EVERY_LANE_ARRIVES)
//   lab time K N ROWS   one shape only, such as two maps of one layer width as one product
//   lab time       microseconds of each part, of the whole op and of cuBLAS bf16; inputs rotate, so weights come from memory

#include "ridgefill-hopper.cuh"
#include "ridgefill-quantize.cuh"
#include "ridgefill-tile.cuh"
#include "ridgefill-vec.cuh"

#include <cublas_v2.h>
#include <cuda_bf16.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#define CHECK_CUDA(call)                                                                          \
    do {                                                                                          \
        const cudaError_t error = (call);                                                         \
        if (error != cudaSuccess) {                                                               \
            printf("%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(error));                 \
            exit(1);                                                                              \
        }                                                                                         \
    } while (0)

static int  n_processors;
static bool is_hopper;
static cudaStream_t stream;

//
// data
//

static __device__ uint32_t mix(uint64_t i) {
    i = (i ^ i >> 31)*0x9e3779b97f4a7c15ull;
    i = (i ^ i >> 29)*0xbf58476d1ce4e5b9ull;
    return uint32_t(i ^ i >> 32);
}

enum filling { CODES, SCALES, VALUES };

static __global__ void fill(void * to, int64_t n, uint64_t seed, filling what) {
    for (int64_t i = blockIdx.x*256ll + threadIdx.x; i < n; i += gridDim.x*256ll) {
        const uint32_t bits = mix(i + (seed << 40));
        if (what == CODES) {
            static_cast<int8_t *>(to)[i] = int8_t(int(bits%256) - 128);
        } else if (what == SCALES) {
            static_cast<uint16_t *>(to)[i] = __float_as_uint(exp2f(-12.0f + 6.0f*(bits%1000)/1000.0f)) >> 16;
        } else { // normal, one of 128 eight times as large
            const float u = ((bits & 0xffff) + 0.5f)/65536.0f, v = (bits >> 16)/65536.0f;
            static_cast<float *>(to)[i] = sqrtf(-2.0f*logf(u))*cosf(6.2831853f*v)*(i%128 == 17 ? 8.0f : 1.0f);
        }
    }
}

template <typename T>
static T * device(int64_t n) {
    T * p;
    CHECK_CUDA(cudaMalloc(&p, n*sizeof(T)));
    return p;
}

template <typename T>
static T * filled(int64_t n, uint64_t seed, filling what) {
    T * p = device<T>(n);
    fill<<<1024, 256>>>(p, n, seed, what);
    return p;
}

struct inputs {
    ridgefill_problem   p = {};
    ridgefill_quantized x = {};
    float             * sums;
    size_t              sums_bytes;
};

static inputs make(int n_in, int n_out, int n_rows, bool bias, int pad, uint64_t seed) {
    inputs in;
    in.p.n_in     = n_in;
    in.p.n_out    = n_out;
    in.p.n_rows   = n_rows;
    in.p.n_groups = (n_in + RIDGEFILL_GROUP - 1)/RIDGEFILL_GROUP;
    in.p.x_stride = n_in + pad;
    in.p.codes = filled<int8_t>(int64_t(n_in)*n_out, seed, CODES);
    in.p.scale = filled<uint16_t>(int64_t(in.p.n_groups)*n_out, seed + 1, SCALES);
    in.p.bias  = bias ? filled<float>(n_out, seed + 2, VALUES) : nullptr;
    in.p.x     = filled<float>(in.p.x_stride*n_rows, seed + 3, VALUES);
    in.p.y     = device<float>(int64_t(n_out)*n_rows);
    in.x.scale_stride = (n_rows + 15)/16*16;
    in.x.q     = device<int8_t>(int64_t(n_rows)*in.p.n_groups*RIDGEFILL_GROUP);
    in.x.scale = device<float>(int64_t(in.x.scale_stride)*in.p.n_groups + 256);
    in.sums_bytes = std::max(size_t(n_out)*n_rows*4*sizeof(float), size_t(64) << 20);
    in.sums       = device<float>(in.sums_bytes/sizeof(float));
    return in;
}

static void drop(inputs & in) {
    const void * all[] = { in.p.codes, in.p.scale, in.p.bias, in.p.x, in.p.y, in.x.q, in.x.scale, in.sums };
    for (const void * p : all) {
        CHECK_CUDA(cudaFree(const_cast<void *>(p)));
    }
}

//
// the ways to multiply
//

struct way {
    std::string name;
    std::function<bool(const inputs &)> run; // false: not for this problem or device
};

static std::vector<way> all_ways() {
    std::vector<way> ways;
    ways.push_back({ "vec", [](const inputs & in) {
        ridgefill_vec(in.p, in.x, stream);
        return in.p.n_rows <= RIDGEFILL_VEC_MAX_ROWS;
    } });
    for (bool small : { true, false }) {
        for (int parts : { 1, 3 }) {
            ways.push_back({ std::string("tile ") + (small ? "small" : "large") + " parts " + std::to_string(parts), [=](const inputs & in) {
                const int bo = small ? 64 : 128, br = small ? 32 : RIDGEFILL_TILE_ROWS;
                const ridgefill_tile_plan plan = { small, (in.p.n_out + bo - 1)/bo*((in.p.n_rows + br - 1)/br), parts };
                if (parts > in.p.n_groups || (in.p.n_rows > 512 && (small || parts > 1))) {
                    return false;
                }
                ridgefill_tile(in.p, in.x, { parts, in.sums }, plan, true, stream);
                return true;
            } });
        }
    }
    for (int rows : { 32, 64, 96, 128, 160 }) {
        for (int share : { 0, 1 }) {
            ways.push_back({ "hopper " + std::to_string(rows) + (share ? " shared" : ""), [=](const inputs & in) {
                if (!is_hopper || rows >= 2*in.p.n_rows + 64 || (rows < 96 && in.p.n_rows > 512)) {
                    return false;
                }
                const ridgefill_hopper_plan plan = ridgefill_hopper_choose(in.p, n_processors, rows, share);
                return !(share && plan.n_shared == 0) && plan.sums*sizeof(float) <= in.sums_bytes &&
                       ridgefill_hopper(in.p, in.x, in.sums, plan, stream);
            } });
        }
    }
    return ways;
}

//
// check
//

// One row a block: the arithmetic in f32 with the kernels' own rounding, and the contract in float64.
static __global__ void reference(ridgefill_problem p, ridgefill_quantized x, const int * rows, float * plain, double * exact) {
    const int out = blockIdx.x*64 + threadIdx.x, row = rows[blockIdx.y];
    if (out >= p.n_out) {
        return;
    }
    float  y = p.bias ? p.bias[out] : 0.0f;
    double e = y;
    for (int g = 0; g < p.n_groups; g++) {
        int    dot   = 0;
        double whole = 0.0;
        for (int k = g*RIDGEFILL_GROUP; k < min((g + 1)*RIDGEFILL_GROUP, p.n_in); k++) {
            const int code = p.codes[int64_t(out)*p.n_in + k];
            dot   += code*x.q[int64_t(row)*p.n_groups*RIDGEFILL_GROUP + k];
            whole += double(code)*p.x[row*p.x_stride + k];
        }
        const float scale = ridgefill_bf16(p.scale[int64_t(out)*p.n_groups + g]);
        y  = ridgefill_add_group(scale, x.scale[int64_t(g)*x.scale_stride + ridgefill_slot(row)], float(dot), y);
        e += scale*whole;
    }
    plain[int64_t(blockIdx.y)*p.n_out + out] = y;
    exact[int64_t(blockIdx.y)*p.n_out + out] = e;
}

static int check(const std::vector<way> & ways, int n_in, int n_out, int n_rows) {
    inputs in = make(n_in, n_out, n_rows, n_rows%2 == 1, n_out%2 ? 0 : n_rows == 7 ? 3 : 8, 7);
    ridgefill_quantize(in.p, in.x, stream);

    const int n = std::min(n_rows, 24);
    std::vector<int> rows;
    for (int i = 0; i < n; i++) {
        rows.push_back(n == n_rows ? i : int(int64_t(i)*(n_rows - 1)/(n - 1)));
    }
    int    * rows_d  = device<int>(n);
    float  * plain_d = device<float>(int64_t(n)*n_out);
    double * exact_d = device<double>(int64_t(n)*n_out);
    std::vector<float>  plain(int64_t(n)*n_out), y(int64_t(n_rows)*n_out);
    std::vector<double> exact(plain.size());
    CHECK_CUDA(cudaMemcpy(rows_d, rows.data(), n*sizeof(int), cudaMemcpyHostToDevice));
    CHECK_CUDA(cudaDeviceSynchronize());
    reference<<<dim3((n_out + 63)/64, n), 64, 0, stream>>>(in.p, in.x, rows_d, plain_d, exact_d);
    CHECK_CUDA(cudaDeviceSynchronize());
    CHECK_CUDA(cudaMemcpy(plain.data(), plain_d, plain.size()*sizeof(float), cudaMemcpyDeviceToHost));
    CHECK_CUDA(cudaMemcpy(exact.data(), exact_d, exact.size()*sizeof(double), cudaMemcpyDeviceToHost));

    int n_bad = 0;
    for (const way & w : ways) {
        CHECK_CUDA(cudaMemset(in.p.y, 0xff, y.size()*sizeof(float))); // NaN
        CHECK_CUDA(cudaMemset(in.sums, 0xff, in.sums_bytes));
        CHECK_CUDA(cudaDeviceSynchronize());
        if (!w.run(in)) {
            continue;
        }
        CHECK_CUDA(cudaGetLastError());
        CHECK_CUDA(cudaDeviceSynchronize());
        CHECK_CUDA(cudaMemcpy(y.data(), in.p.y, y.size()*sizeof(float), cudaMemcpyDeviceToHost));
        double error = 0.0, rounding = 0.0, size = 1e-300;
        for (int i = 0; i < n; i++) {
            for (int o = 0; o < n_out; o++) {
                const double v = y[int64_t(rows[i])*n_out + o], e = exact[int64_t(i)*n_out + o], f = plain[int64_t(i)*n_out + o];
                error    += (v - e)*(v - e);
                rounding += (v - f)*(v - f);
                size     += e*e;
            }
        }
        const bool set = std::all_of(y.begin(), y.end(), [](float v) { return std::isfinite(v); });
        // a mean over few elements says little about the rounding of x
        if (!set || !(rounding/size < 1e-10) || (plain.size() >= 512 && !(error/size < 5e-4))) {
            printf("FAIL %s, [%d -> %d], %d rows: nmse %.2e, against f32 %.2e%s\n", w.name.c_str(), n_in, n_out, n_rows,
                   error/size, rounding/size, set ? "" : ", not all written");
            n_bad++;
        }
    }
    CHECK_CUDA(cudaFree(rows_d));
    CHECK_CUDA(cudaFree(plain_d));
    CHECK_CUDA(cudaFree(exact_d));
    drop(in);
    return n_bad;
}

//
// time
//

// Median of five replays of a graph that holds the work many times.
static double microseconds(const std::vector<inputs> & sets, const std::function<void(const inputs &)> & work) {
    constexpr int N = 12;
    cudaGraph_t     graph;
    cudaGraphExec_t exec;
    cudaEvent_t     begin, end;
    work(sets[0]); // handles and modules
    CHECK_CUDA(cudaStreamSynchronize(stream));
    CHECK_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    for (int i = 0; i < N; i++) {
        work(sets[i%sets.size()]);
    }
    CHECK_CUDA(cudaStreamEndCapture(stream, &graph));
    CHECK_CUDA(cudaGraphInstantiate(&exec, graph, 0));
    CHECK_CUDA(cudaEventCreate(&begin));
    CHECK_CUDA(cudaEventCreate(&end));
    std::vector<float> ms(6);
    for (float & t : ms) {
        CHECK_CUDA(cudaEventRecord(begin, stream));
        CHECK_CUDA(cudaGraphLaunch(exec, stream));
        CHECK_CUDA(cudaEventRecord(end, stream));
        CHECK_CUDA(cudaEventSynchronize(end));
        CHECK_CUDA(cudaEventElapsedTime(&t, begin, end));
    }
    std::sort(ms.begin() + 1, ms.end()); // the first warms up
    CHECK_CUDA(cudaGraphExecDestroy(exec));
    CHECK_CUDA(cudaGraphDestroy(graph));
    return ms[3]*1000.0/N;
}

static void time_shape(const std::vector<way> & ways, cublasHandle_t cublas, int n_in, int n_out, int n_rows) {
    std::vector<inputs> sets;
    for (int i = 0; i < (n_rows <= 128 ? 8 : 3); i++) {
        sets.push_back(make(n_in, n_out, n_rows, true, 0, 100 + 10*i));
    }
    printf("[%d -> %d] %d rows\n", n_in, n_out, n_rows);
    const auto line = [&](const std::string & name, const std::function<void(const inputs &)> & work) {
        const double us = microseconds(sets, work);
        printf("  %-22s %8.1f us %7.0f TOP/s\n", name.c_str(), us, 2.0*n_in*n_out*n_rows/us*1e-6);
    };
    line("quantise", [](const inputs & in) { ridgefill_quantize(in.p, in.x, stream); });

    __nv_bfloat16 * w = device<__nv_bfloat16>(int64_t(n_in)*n_out*sets.size()), * x = device<__nv_bfloat16>(int64_t(n_in)*n_rows);
    fill<<<1024, 256>>>(w, int64_t(n_in)*n_out*sets.size()/2, 1, VALUES);
    fill<<<1024, 256>>>(x, int64_t(n_in)*n_rows/2, 2, VALUES);
    const float one = 1.0f, zero = 0.0f;
    int turn = 0;
    line("cublas bf16", [&](const inputs & in) {
        cublasGemmEx(cublas, CUBLAS_OP_T, CUBLAS_OP_N, n_out, n_rows, n_in, &one, w + int64_t(turn++%sets.size())*n_in*n_out, CUDA_R_16BF,
                     n_in, x, CUDA_R_16BF, n_in, &zero, in.p.y, CUDA_R_32F, n_out, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    });
    line("whole op", [](const inputs & in) { // as ridgefill.cu chooses
        ridgefill_quantize(in.p, in.x, stream);
        if (in.p.n_rows <= RIDGEFILL_VEC_MAX_ROWS) {
            ridgefill_vec(in.p, in.x, stream);
        } else if (is_hopper && in.p.n_rows > 32) {
            ridgefill_hopper(in.p, in.x, in.sums, ridgefill_hopper_choose(in.p, n_processors), stream);
        } else {
            const ridgefill_tile_plan plan = ridgefill_tile_choose(in.p, n_processors);
            ridgefill_tile(in.p, in.x, { plan.parts, in.sums }, plan, true, stream);
        }
    });
    for (const way & some : ways) {
        if (some.run(sets[0])) {
            line(some.name, some.run);
        }
    }
    CHECK_CUDA(cudaFree(w));
    CHECK_CUDA(cudaFree(x));
    for (inputs & in : sets) {
        drop(in);
    }
}

int main(int argc, char ** argv) {
    const std::string mode = argc > 1 ? argv[1] : "";
    const bool one_shape = mode == "time" && argc == 5;
    if ((argc != 2 && !one_shape) || (mode != "check" && mode != "few" && mode != "time")) {
        fprintf(stderr, "usage: lab check|few|time [K N ROWS]\n");
        return 2;
    }
    cudaDeviceProp prop;
    CHECK_CUDA(cudaGetDeviceProperties(&prop, 0));
    CHECK_CUDA(cudaStreamCreate(&stream));
    n_processors = prop.multiProcessorCount;
    is_hopper    = prop.major == 9 && ridgefill_hopper_built();
    const std::vector<way> ways = all_ways();

    int n_bad = 0;
    if (mode == "check") {
        for (int n_in : { 32, 128, 160, 576, 2560 }) {
            for (int n_out : { 1, 33, 200, 576 }) {
                for (int n_rows : { 1, 7, 33, 130, 300 }) {
                    n_bad += check(ways, n_in, n_out, n_rows);
                }
            }
        }
        n_bad += check(ways, 10240, 2560, 515) + check(ways, 4096, 4096, 2047);
    } else if (mode == "few") {
        n_bad = check(ways, 576, 200, 33) + check(ways, 1280, 576, 300) + check(ways, 160, 33, 4);
    } else {
        cublasHandle_t cublas;
        cublasCreate(&cublas);
        cublasSetStream(cublas, stream);
        if (one_shape) {
            time_shape(ways, cublas, atoi(argv[2]), atoi(argv[3]), atoi(argv[4]));
            return 0;
        }
        for (int n_rows : { 2048, 512, 128, 32, 1 }) {
            time_shape(ways, cublas, 10240, 2560, n_rows);
            time_shape(ways, cublas, 5120, 5120, n_rows);
            time_shape(ways, cublas, 4096, 4096, n_rows);
        }
        return 0;
    }
    printf("%s\n", n_bad ? "FAIL" : "OK");
    return n_bad != 0;
}
