// A stand-in for the CUDA driver: one device whose memory is the host's. Launches are printed, not run. With FAULT set,
// every call after a launch fails as after an illegal access. Only what the runtime calls is here.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fault = 0, capturing = 0, captured = 0, live = 0;

static int state(void) { return fault ? 700 : 0; }

// Lines come out in the order of the calls, also beside what the caller prints.
int cuInit(unsigned f) { (void)f; setvbuf(stdout, 0, _IOLBF, 1 << 12); return 0; }
int cuDriverGetVersion(int *v) { *v = getenv("OLD") ? 12040 : 13000; return 0; }
int cuDeviceGetCount(int *n) { *n = 1; return 0; }
int cuDeviceGet(int *d, int i) { *d = i; return 0; }
int cuDeviceGetName(char *s, int n, int d) { (void)d; strncpy(s, "Stand-in", n); return 0; }
int cuDeviceTotalMem_v2(size_t *n, int d) { (void)d; *n = (size_t)1 << 34; return 0; }
int cuDeviceGetAttribute(int *v, int a, int d) {
    (void)d;
    *v = a == 75 ? 9 : a == 76 ? 0 : a == 16 ? 132 : 1; // capability 9.0, multiprocessors
    return 0;
}
int cuDevicePrimaryCtxRetain(void **c, int d) { (void)d; *c = (void *)0x1000; return 0; }
int cuDevicePrimaryCtxRelease_v2(int d) { (void)d; return 0; }
static void *current = 0;
int cuCtxGetCurrent(void **c) { *c = current; return 0; }
int cuCtxSetCurrent(void *c) { current = c; return 0; }
int cuCtxSynchronize(void) { return state(); }
int cuGetErrorName(int e, const char **s) {
    *s = e == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : e == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_OTHER";
    return 0;
}
int cuGetErrorString(int e, const char **s) { *s = e == 700 ? "an illegal memory access was encountered" : "?"; return 0; }

// NVRTC looks for this one by itself, and for a driver without it, it crashes.
int cuGetExportTable(const void **t, const void *id) { (void)id; *t = 0; return 500; }

int cuMemAlloc_v2(unsigned long long *p, size_t n) {
    if (n > (size_t)1 << 33) return 2;
    live++;
    *p = (unsigned long long)aligned_alloc(256, (n + 255) / 256 * 256);
    return state();
}
int cuMemFree_v2(unsigned long long p) {
    if (capturing) { printf("freed while capturing\n"); fflush(stdout); }
    free((void *)p);
    printf("live %d\n", --live);
    fflush(stdout);
    return 0;
}
int cuMemGetInfo_v2(size_t *f, size_t *t) { *f = 12345; *t = (size_t)1 << 34; return 0; }
int cuMemsetD8_v2(unsigned long long p, unsigned char c, size_t n) { memset((void *)p, c, n); return state(); }
int cuMemcpyHtoD_v2(unsigned long long d, const void *s, size_t n) { memcpy((void *)d, s, n); return state(); }
int cuMemcpyDtoH_v2(void *d, unsigned long long s, size_t n) { memcpy(d, (void *)s, n); return state(); }

int cuStreamCreate(void **s, unsigned f) { (void)f; *s = (void *)0x2000; return state(); }
int cuStreamSynchronize(void *s) { (void)s; return state(); }
int cuStreamDestroy_v2(void *s) { (void)s; return 0; }
int cuEventCreate(void **e, unsigned f) { *e = (void *)0x3000; return f == 0 ? state() : 1; }
int cuEventRecord(void *e, void *s) { (void)e; (void)s; return state(); }
int cuEventSynchronize(void *e) { (void)e; return state(); }
int cuEventElapsedTime_v2(float *ms, void *a, void *b) { (void)a; (void)b; *ms = 6.0f; return state(); }
int cuEventDestroy_v2(void *e) { (void)e; return 0; }

int cuModuleLoadData(void **m, const void *image) { *m = (void *)0x4000; return memcmp(image, "\177ELF", 4) ? 200 : state(); }
int cuModuleUnload(void *m) { (void)m; return 0; }
int cuModuleGetFunction(void **f, void *m, const char *name) { (void)m; *f = (void *)0x5000; printf("entry %s\n", name); return 0; }
int cuFuncSetAttribute(void *f, int a, int v) { (void)f; printf("attribute %d = %d\n", a, v); return 0; }
int cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, void *f, int threads, size_t shared, unsigned flags) {
    (void)f; (void)flags;
    *n = shared > 200000 ? 0 : 2048 / threads;
    return 0;
}
typedef struct { int id; char pad[4]; union { char bytes[64]; unsigned words[3]; int number; } value; } attribute;
typedef struct { unsigned grid[3], block[3], shared; void *stream; attribute *attributes; unsigned count; } config;
static void print_attributes(const config *c) {
    for (unsigned i = 0; i < c->count; i++) {
        const attribute *a = c->attributes + i;
        if (a->id == 4) printf(" cluster %u %u %u", a->value.words[0], a->value.words[1], a->value.words[2]);
        else if (a->id == 6) printf(" dependent %d", a->value.number);
        else printf(" attribute %d", a->id);
    }
}
int cuOccupancyMaxActiveClusters(int *n, void *f, const config *c) {
    (void)f;
    printf("clusters of");
    print_attributes(c);
    printf("\n");
    // Two blocks of a cluster on each of seven multiprocessors.
    const unsigned *words = c->attributes[0].value.words;
    *n = c->shared > 200000 ? 0 : 132 / 7 / (words[0] * words[1] * words[2]) * 7;
    return 0;
}
// The 128 bytes of this stand-in: the arguments, for the launch to print.
int cuTensorMapEncodeTiled(unsigned long long *map, int type, unsigned rank, void *address, const unsigned long long *extents,
                           const unsigned long long *strides, const unsigned *box, const unsigned *steps, int interleave,
                           int swizzle, int promotion, int fill) {
    if (getenv("REFUSE_MAPS")) return 1;
    printf("map type %d at %llx:", type, (unsigned long long)address);
    for (unsigned i = 0; i < rank; i++) {
        printf(" %llu/%u", extents[i], box[i]);
        if (i) printf("*%llu", strides[i - 1]);
        if (!extents[i] || steps[i] != 1) return 1;
    }
    printf(" swizzle %d promotion %d\n", swizzle, promotion);
    if (interleave || fill || (unsigned long long)map % 128) return 1;
    memset(map, 0, 128);
    map[0] = (unsigned long long)address;
    map[15] = rank;
    return 0;
}
int cuLaunchKernelEx(const config *c, void *f, void **params, void **extra) {
    (void)f; (void)extra;
    if (capturing) { captured++; return 0; }
    printf("launch grid %u %u %u threads %u %u %u shared %u", c->grid[0], c->grid[1], c->grid[2], c->block[0], c->block[1],
           c->block[2], c->shared);
    print_attributes(c);
    const char *maps = getenv("MAPS");
    for (int i = 0; maps && i < atoi(maps); i++) {
        unsigned long long *map = params[i];
        printf(" map %llx %llu", map[0], map[15]);
        if ((unsigned long long)map % 64) return 1;
    }
    // The test's kernel has four arguments: two addresses, two of 32 bits.
    if (!maps) {
        printf(" arguments %llx %llx", *(unsigned long long *)params[0], *(unsigned long long *)params[1]);
        printf(" %x %x", *(unsigned *)params[2], *(unsigned *)params[3]);
    }
    printf("\n");
    fflush(stdout);
    if (getenv("FAULT")) fault = 1;
    return 0;
}
int cuStreamBeginCapture_v2(void *s, int mode) { (void)s; (void)mode; capturing = 1; captured = 0; return state(); }
int cuStreamEndCapture(void *s, void **g) { (void)s; capturing = 0; *g = (void *)0x6000; return state(); }
int cuGraphInstantiateWithFlags(void **e, void *g, unsigned long long f) { (void)g; (void)f; *e = (void *)0x7000; return 0; }
int cuGraphExecDestroy(void *e) { (void)e; return 0; }
int cuGraphDestroy(void *g) { (void)g; return 0; }
int cuGraphLaunch(void *e, void *s) { (void)e; (void)s; printf("graph of %d\n", captured); fflush(stdout); return state(); }
