// What the product shaders share: operands and where they lie.

layout (push_constant) uniform parameter {
    uint n_in;
    uint n_out;
    uint n_rows;
    uint n_groups;
    uint codes_offset;   // pieces of 16 codes
    uint scale_offset;   // bf16
    uint bias_offset;    // floats
    uint has_bias;
    uint q_offset;       // pieces of 16 codes
    uint q_scale_offset; // floats
    uint y_offset;       // floats
} p;

layout (binding = 0) readonly buffer C {uvec4 data_codes[];};     // [output][n_in / 16]
layout (binding = 1) readonly buffer W {uint16_t data_scale[];};  // [output][group]
layout (binding = 2) readonly buffer B {float data_bias[];};
layout (binding = 3) readonly buffer Q {uvec4 data_q[];};         // [row][group][8]
layout (binding = 4) readonly buffer S {float data_q_scale[];};   // [group][row]
layout (binding = 5) writeonly buffer Y {float data_y[];};        // [row][output]

const uint GROUP = 128;

// Places past the end repeat the last output or row: they are computed and not written.

// 16 codes of an output; past n_in, where x holds zeros, any will do
uvec4 load_codes(const uint output_index, const uint piece) {
    const uint per_output = p.n_in / 16;
    return data_codes[p.codes_offset + min(output_index, p.n_out - 1) * per_output + min(piece, per_output - 1)];
}

uvec4 load_x(const uint row, const uint piece) {
    return data_q[p.q_offset + min(row, p.n_rows - 1) * p.n_groups * (GROUP / 16) + piece];
}

float load_scale(const uint output_index, const uint group) {
    const uint bf16 = uint(data_scale[p.scale_offset + min(output_index, p.n_out - 1) * p.n_groups + group]);
    return uintBitsToFloat(bf16 << 16);
}

float load_x_scale(const uint row, const uint group) {
    return data_q_scale[p.q_scale_offset + group * p.n_rows + min(row, p.n_rows - 1)];
}

float load_bias(const uint output_index) {
    return p.has_bias != 0 ? data_bias[p.bias_offset + min(output_index, p.n_out - 1)] : 0.0;
}
