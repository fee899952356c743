// Where maps are: the words for it, and how much memory a side file will take before a model is loaded.

#include "llama-ridgefill.h"

#include "llama-ridgefill-gguf.h"

#include "ggml-ridgefill-stream.h"

#include <algorithm>
#include <cstring>

const char * llama_ridgefill_placement_name(enum llama_ridgefill_placement placement) {
    switch (placement) {
    case LLAMA_RIDGEFILL_PLACEMENT_DEVICE:
        return "device";
    case LLAMA_RIDGEFILL_PLACEMENT_HOST:
        return "host";
    }
    return "unknown";
}

bool llama_ridgefill_placement_parse(const char * text, enum llama_ridgefill_placement * placement) {
    for (const auto value : {LLAMA_RIDGEFILL_PLACEMENT_DEVICE, LLAMA_RIDGEFILL_PLACEMENT_HOST}) {
        if (strcmp(text, llama_ridgefill_placement_name(value)) == 0) {
            *placement = value;
            return true;
        }
    }
    return false;
}

size_t llama_ridgefill_file_size(const char * path, enum llama_ridgefill_placement placement) {
    try {
        uint64_t maps = 0, biases = 0, n_maps = 0;
        for (const ridgefill_gguf_tensor & t : ridgefill_gguf_read(path).tensors) {
            const std::string kind = t.name.substr(t.name.find_last_of('.') + 1);
            if (kind == "codes") {
                maps += t.size + t.size / 16; // as Q8_0, which is what devices without the op get: 34 bytes for 32
                n_maps++;
            } else if (kind == "weight") {
                maps += t.size;
                n_maps++;
            } else if (kind == "bias") {
                biases += t.size;
            }
        }
        if (placement == LLAMA_RIDGEFILL_PLACEMENT_HOST && n_maps > 0) {
            maps = maps / n_maps * std::min<uint64_t>(n_maps, GGML_RIDGEFILL_SLOTS);
        }
        return maps + biases;
    } catch (const std::exception &) {
        return 0; // loading it will say why
    }
}
