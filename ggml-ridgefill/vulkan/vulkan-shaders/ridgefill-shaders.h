// Our lines in the list of shaders that upstream's vulkan-shaders-gen compiles: included in the middle of a function.

string_to_spv("ridgefill_round", "ridgefill_round.comp", {});
string_to_spv("ridgefill_mul", "ridgefill_mul.comp", {}, false);
string_to_spv("ridgefill_mul", "ridgefill_mul.comp", {{"FLOAT16", "1"}});
string_to_spv("ridgefill_mul_int", "ridgefill_mul.comp", {{"INTEGER", "1"}});
#if defined(GGML_VULKAN_INTEGER_DOT_GLSLC_SUPPORT)
string_to_spv("ridgefill_mul_int_dot", "ridgefill_mul.comp", {{"INTEGER_DOT", "1"}});
#endif
#if defined(GGML_VULKAN_COOPMAT_GLSLC_SUPPORT)
string_to_spv("ridgefill_mul", "ridgefill_mul_cm1.comp", {}, true, true);
string_to_spv("ridgefill_mul_int8", "ridgefill_mul_cm1.comp", {{"INT8", "1"}}, true, true);
#endif
