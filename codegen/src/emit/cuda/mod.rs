//! CUDA C++: header-free text that NVRTC compiles without a toolkit.
