#include "llama-ridgefill-gguf.h"

#include "ggml.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>

namespace {

constexpr uint64_t MAX_KEYS = 1024;
constexpr uint64_t MAX_TENSORS = 4096;
constexpr uint64_t MAX_NAME = 63;
constexpr uint64_t MAX_STRING = 16u << 20;
constexpr uint64_t MAX_HEADER = 64u << 20;
constexpr uint64_t MAX_DIMS = 4;
constexpr uint64_t MAX_TEXTS = 65536;

// numbers of the format
enum : uint32_t {
    TYPE_U8,
    TYPE_I8,
    TYPE_U16,
    TYPE_I16,
    TYPE_U32,
    TYPE_I32,
    TYPE_F32,
    TYPE_BOOL,
    TYPE_STRING,
    TYPE_ARRAY,
    TYPE_U64,
    TYPE_I64,
    TYPE_F64,
};

size_t size_of(uint32_t type) { // 0: not a scalar
    switch (type) {
    case TYPE_U8:
    case TYPE_I8:
    case TYPE_BOOL:
        return 1;
    case TYPE_U16:
    case TYPE_I16:
        return 2;
    case TYPE_U32:
    case TYPE_I32:
    case TYPE_F32:
        return 4;
    case TYPE_U64:
    case TYPE_I64:
    case TYPE_F64:
        return 8;
    default:
        return 0;
    }
}

using value = ridgefill_gguf_value;

value::kind_t kind_of(uint32_t type, bool array) {
    switch (type) {
    case TYPE_F32:
    case TYPE_F64:
        return array ? value::FLOATS : value::FLOAT;
    case TYPE_BOOL:
        return array ? value::BOOLS : value::BOOL;
    case TYPE_STRING:
        return array ? value::STRINGS : value::STRING;
    default:
        return array ? value::INTS : value::INT;
    }
}

uint64_t padded(uint64_t n, uint64_t alignment) {
    return (n + alignment - 1) / alignment * alignment;
}

class reader {
  public:
    explicit reader(const std::string & path) : file(nullptr, fclose) { res.path = path; }

    ridgefill_gguf read() {
        open();
        item = "magic";
        char magic[4] = {};
        const size_t n = fread(magic, 1, 4, file.get());
        pos = n;
        if (n < 4 || memcmp(magic, "GGUF", 4) != 0) {
            fail("not-gguf", res.file_size == 0 ? "an empty file" : ridgefill_quoted(std::string(magic, n)), "'GGUF'");
        }
        item = "GGUF version";
        const uint32_t version = number<uint32_t>();
        if (version != 3) {
            fail("not-gguf", version == 3u << 24 ? "big endian" : std::to_string(version), "3, little endian");
        }
        item = "tensor count";
        const uint64_t n_tensors = number<uint64_t>();
        limit(n_tensors, MAX_TENSORS);
        item = "key count";
        const uint64_t n_keys = number<uint64_t>();
        limit(n_keys, MAX_KEYS);

        for (uint64_t i = 0; i < n_keys; ++i) {
            read_key(i);
        }
        const uint64_t alignment = read_alignment();
        for (uint64_t i = 0; i < n_tensors; ++i) {
            read_tensor(i);
        }
        check_spans(alignment);
        return std::move(res);
    }

  private:
    ridgefill_gguf res;
    std::unique_ptr<FILE, int (*)(FILE *)> file;
    uint64_t pos = 0;
    std::string item; // what is being read

    [[noreturn]] void fail(const char * code, const std::string & found, const std::string & allowed) const {
        throw ridgefill_sidefile_error(
            code, res.path, item + (item.empty() ? "" : ": ") + "found " + found + ", allowed " + allowed
        );
    }

    void limit(uint64_t n, uint64_t most) const {
        if (n > most) {
            fail("header", std::to_string(n), "at most " + std::to_string(most));
        }
    }

    void open() {
        std::error_code ec;
        const auto status = std::filesystem::status(res.path, ec);
        if (!std::filesystem::is_regular_file(status)) {
            fail("no-file", std::filesystem::exists(status) ? "no regular file" : "no such file", "a GGUF file");
        }
        res.file_size = std::filesystem::file_size(res.path, ec);
        if (!ec) {
            file.reset(fopen(res.path.c_str(), "rb"));
        }
        if (!file) {
            fail("no-file", "a file that cannot be read", "a readable GGUF file");
        }
    }

    // reads n bytes, which the file must have and the header may have
    void take(void * dst, uint64_t n) {
        if (n > res.file_size - pos) {
            fail(
                "truncated", std::to_string(res.file_size) + " bytes",
                "at least " + std::to_string(pos) + " + " + std::to_string(n)
            );
        }
        pos += n;
        if (pos > MAX_HEADER) {
            fail("header", "more than " + std::to_string(MAX_HEADER) + " bytes of header", "at most as many");
        }
        if (n > 0 && fread(dst, 1, n, file.get()) != n) {
            fail("truncated", "an early end of file", std::to_string(n) + " more bytes");
        }
    }

    template <typename T>
    T number() {
        T v;
        take(&v, sizeof(v));
        return v;
    }

    std::string text() {
        const uint64_t n = number<uint64_t>();
        if (n > MAX_STRING) {
            fail("header", "a string of " + std::to_string(n) + " bytes", "at most " + std::to_string(MAX_STRING));
        }
        if (n > res.file_size - pos) { // before memory is taken for it
            take(nullptr, n);
        }
        std::string s((size_t) n, '\0');
        take(&s[0], n);
        return s;
    }

    void read_key(uint64_t i) {
        item = "key " + std::to_string(i);
        const std::string name = text();
        item = ridgefill_quoted(name);
        if (res.keys.count(name)) {
            fail("header", "the key twice", "each key once");
        }
        const uint32_t type = number<uint32_t>();
        value v;
        if (type == TYPE_ARRAY) {
            v = read_array();
        } else if (type == TYPE_STRING) {
            v.kind = value::STRING;
            v.text = text();
        } else if (size_of(type) > 0) {
            v = read_scalar(type);
        } else {
            fail("header", "value type " + std::to_string(type), "0 .. 12");
        }
        res.keys.emplace(name, std::move(v));
    }

    value read_scalar(uint32_t type) {
        value v;
        v.kind = kind_of(type, false);
        switch (type) {
        case TYPE_U8:
            v.number = number<uint8_t>();
            break;
        case TYPE_I8:
            v.number = number<int8_t>();
            break;
        case TYPE_U16:
            v.number = number<uint16_t>();
            break;
        case TYPE_I16:
            v.number = number<int16_t>();
            break;
        case TYPE_U32:
            v.number = number<uint32_t>();
            break;
        case TYPE_I32:
            v.number = number<int32_t>();
            break;
        case TYPE_I64:
            v.number = number<int64_t>();
            break;
        case TYPE_U64: {
            const uint64_t n = number<uint64_t>();
            v.number = n > INT64_MAX ? INT64_MAX : (int64_t) n;
        } break;
        case TYPE_BOOL:
            v.number = number<uint8_t>();
            if (v.number > 1) {
                fail("header", "bool " + std::to_string(v.number), "0 or 1");
            }
            break;
        case TYPE_F32:
            number<float>();
            break; // only its kind is asked for
        default:
            number<double>();
            break;
        }
        return v;
    }

    // arrays of numbers are passed over: nobody here needs their values
    value read_array() {
        const uint32_t type = number<uint32_t>();
        const uint64_t n = number<uint64_t>();
        value v;
        v.kind = kind_of(type, true);
        if (type == TYPE_STRING) {
            if (n > (res.file_size - pos) / 8) {
                fail("truncated", std::to_string(res.file_size) + " bytes", std::to_string(n) + " strings");
            }
            for (uint64_t i = 0; i < n; ++i) {
                std::string t = text();
                if (n <= MAX_TEXTS) {
                    v.texts.push_back(std::move(t));
                }
            }
            return v;
        }
        const size_t size = size_of(type);
        if (size == 0) {
            fail("header", "array of type " + std::to_string(type), "numbers, bools or strings");
        }
        if (n > (res.file_size - pos) / size) {
            fail("truncated", std::to_string(res.file_size) + " bytes", std::to_string(n) + " values");
        }
        char buf[4096];
        for (uint64_t left = n * size; left > 0;) {
            const uint64_t part = std::min<uint64_t>(left, sizeof(buf));
            take(buf, part);
            left -= part;
        }
        return v;
    }

    uint64_t read_alignment() {
        item = "general.alignment";
        const auto it = res.keys.find(item);
        if (it == res.keys.end()) {
            return 32;
        }
        const int64_t a = it->second.number;
        if (it->second.kind != value::INT || a < 8 || a > 65536 || (a & (a - 1)) != 0) {
            fail(
                "header", it->second.kind == value::INT ? std::to_string(a) : ridgefill_gguf_kind_name(it->second.kind),
                "a power of two, 8 .. 65536"
            );
        }
        return (uint64_t) a;
    }

    void read_tensor(uint64_t i) {
        item = "tensor " + std::to_string(i);
        ridgefill_gguf_tensor t;
        t.name = text();
        bool printable = true;
        for (const char c : t.name) {
            printable = printable && c > 32 && c < 127;
        }
        if (t.name.empty() || t.name.size() > MAX_NAME || !printable) {
            fail("header", "name " + ridgefill_quoted(t.name), "1 to 63 bytes of printable ASCII");
        }
        item = t.name;
        const uint32_t n_dims = number<uint32_t>();
        if (n_dims < 1 || n_dims > MAX_DIMS) {
            fail("header", std::to_string(n_dims) + " dimensions", "1 .. 4");
        }
        uint64_t n_elements = 1;
        bool fits = true;
        for (uint32_t d = 0; d < n_dims; ++d) {
            const uint64_t n = number<uint64_t>();
            t.ne.push_back(n);
            fits = fits && n > 0 && n < (uint64_t(1) << 59) && n_elements < (uint64_t(1) << 59) / n + 1;
            n_elements *= fits ? n : 1;
        }
        if (!fits || n_elements >= uint64_t(1) << 59) {
            fail("header", "its shape", "1 .. 2^59 elements");
        }
        t.type = number<uint32_t>();
        t.offset = number<uint64_t>();
        if (t.type < GGML_TYPE_COUNT && ggml_blck_size((ggml_type) t.type) > 0
            && ggml_type_size((ggml_type) t.type) > 0) {
            const uint64_t block = (uint64_t) ggml_blck_size((ggml_type) t.type);
            if (t.ne[0] % block != 0) {
                fail("header", std::to_string(t.ne[0]) + " columns", "a multiple of " + std::to_string(block));
            }
            t.size = n_elements / block * ggml_type_size((ggml_type) t.type);
        }
        res.tensors.push_back(std::move(t));
    }

    // Tensors follow each other without gap or overlap, each at the next aligned byte, and end inside the file.
    void check_spans(uint64_t alignment) {
        const uint64_t begin = padded(pos, alignment);
        uint64_t expected = 0;
        bool known = true; // after a type of unknown size the next offset cannot be known; the type is refused later
        for (ridgefill_gguf_tensor & t : res.tensors) {
            item = t.name;
            if (known && t.offset != expected) {
                fail(
                    "tensor-span", "offset " + std::to_string(t.offset),
                    std::to_string(expected) + ", the end of the tensor before it"
                );
            }
            if (begin > res.file_size || t.offset > res.file_size - begin
                || t.size > res.file_size - begin - t.offset) {
                fail("truncated", std::to_string(res.file_size) + " bytes", "room for the tensor's data");
            }
            known = t.size > 0;
            expected = t.offset + padded(t.size, alignment);
            t.offset += begin;
        }
    }
};

} // namespace

const char * ridgefill_gguf_kind_name(ridgefill_gguf_value::kind_t kind) {
    static const char * names[] = {"int", "float", "bool", "string", "ints", "floats", "bools", "strings"};
    return names[kind];
}

std::string ridgefill_quoted(const std::string & s) {
    std::string res = "'";
    for (const char c : s.substr(0, 120)) {
        res += c >= 32 && c < 127 ? c : '?';
    }
    return res + (s.size() > 120 ? "...'" : "'");
}

ridgefill_gguf ridgefill_gguf_read(const std::string & path) {
    return reader(path).read();
}
