"""The words of the C API's enums, by value; without the native libraries."""

MODES = ("off", "plumb", "speed", "quality")
SELECTS = ("attention", "spans", "rows", "class", "random", "all")
