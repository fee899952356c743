#pragma once

// A strict reader of GGUF headers: every count, length and offset is checked before it is used, no more than the header
// is kept in memory, nothing is read past the file. Knows nothing of what the keys mean, and no model: it can be fuzzed
// alone. The Python package reads the same way; both name the same defect.

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

// what(): "<code>: <file>: <key or tensor>: found X, allowed Y"
struct ridgefill_sidefile_error : std::runtime_error {
    ridgefill_sidefile_error(const char * code, const std::string & file, const std::string & text)
        : std::runtime_error(std::string(code) + ": " + file + ": " + text), code(code) {}
    const char * code; // static storage, listed in docs/format.md
};

struct ridgefill_gguf_value {
    // what kind of value; the widths of integers and floats do not matter
    enum kind_t { INT, FLOAT, BOOL, STRING, INTS, FLOATS, BOOLS, STRINGS };
    kind_t kind = INT;
    int64_t number = 0;             // INT; an unsigned value beyond its range is INT64_MAX
    std::string text;               // STRING
    std::vector<std::string> texts; // STRINGS, empty when there are more than 65536
};

const char * ridgefill_gguf_kind_name(ridgefill_gguf_value::kind_t kind);

struct ridgefill_gguf_tensor {
    std::string name;
    uint32_t type = 0; // a ggml_type, perhaps one that ggml does not know
    std::vector<uint64_t> ne;
    uint64_t offset = 0; // from the beginning of the file
    uint64_t size = 0;   // bytes; 0 for an unknown type
};

struct ridgefill_gguf {
    std::string path;
    uint64_t file_size = 0;
    std::map<std::string, ridgefill_gguf_value> keys;
    std::vector<ridgefill_gguf_tensor> tensors; // in file order; a name may occur twice
};

// Throws ridgefill_sidefile_error: no-file, not-gguf, truncated, header, tensor-span.
ridgefill_gguf ridgefill_gguf_read(const std::string & path);

// Text from a file for a message: printable, at most 120 characters, in quotes.
std::string ridgefill_quoted(const std::string & s);
