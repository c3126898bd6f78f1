// Names of the element types. Floats narrower than 32 bits are bit patterns; arithmetic happens in f32.
typedef unsigned char u8; typedef signed char i8; typedef unsigned short u16; typedef unsigned int u32;
typedef long long i64; typedef unsigned long long u64;
typedef u16 bf16; typedef u16 f16; typedef u8 e4m3; typedef u8 e5m2; typedef u8 e8m0;
#define DEV __device__ __forceinline__
