#version 450

// x in groups of 128 to int8 and an f32 scale per row and group; the product's short last group is filled up with zeros.
// 32 invocations share a group, 4 groups a workgroup.

layout (push_constant) uniform parameter {
    uint n_in;
    uint n_rows;
    uint n_groups;
    uint x_stride;     // floats between rows
    uint x_offset;     // floats
    uint q_offset;     // words of 4 codes
    uint scale_offset; // floats
} p;

layout (binding = 0) readonly buffer X {float data_x[];};
layout (binding = 1) writeonly buffer Q {uint data_q[];};         // [row][group][32]
layout (binding = 2) writeonly buffer S {float data_scale[];};    // [group][row]

layout (local_size_x = 128, local_size_y = 1, local_size_z = 1) in;

const uint LANES = 32;
const uint INF = 0x7f800000u;

shared uint part[128];

void main() {
    const uint lane  = gl_LocalInvocationID.x % LANES;
    const uint group = gl_WorkGroupID.x * 4 + gl_LocalInvocationID.x / LANES;
    const uint first = group * 128 + lane * 4;

    for (uint row = gl_WorkGroupID.y; row < p.n_rows; row += gl_NumWorkGroups.y) {
        vec4 x = vec4(0.0);
        if (group < p.n_groups && first < p.n_in) { // n_in is a multiple of 32
            const uint at = p.x_offset + row * p.x_stride + first;
            x = vec4(data_x[at], data_x[at + 1], data_x[at + 2], data_x[at + 3]);
        }

        // magnitudes compare like their bits, and a NaN or an infinity beats every number whatever the compiler assumes
        const uvec4 bits = floatBitsToUint(x) & 0x7fffffffu;
        part[gl_LocalInvocationID.x] = max(max(bits.x, bits.y), max(bits.z, bits.w));
        barrier();
        for (uint step = LANES / 2; step > 0; step /= 2) {
            if (lane < step) {
                part[gl_LocalInvocationID.x] = max(part[gl_LocalInvocationID.x], part[gl_LocalInvocationID.x + step]);
            }
            barrier();
        }
        const uint absmax_bits = part[gl_LocalInvocationID.x - lane];
        barrier();

        const float absmax = uintBitsToFloat(absmax_bits);
        const bool finite = absmax_bits < INF;
        const bool used   = finite && absmax >= 4e-37; // below, the reciprocal overflows

        if (group < p.n_groups) {
            const ivec4 v = used ? ivec4(roundEven(x * (127.0 / absmax))) : ivec4(0);
            const uvec4 q = uvec4(v) & 0xffu;
            data_q[p.q_offset + (row * p.n_groups + group) * LANES + lane] = q.x | q.y << 8 | q.z << 16 | q.w << 24;
            if (lane == 0) {
                data_scale[p.scale_offset + group * p.n_rows + row] =
                    used ? absmax / 127.0 : finite ? 1.0 : uintBitsToFloat(0x7fc00000u);
            }
        }
    }
}
