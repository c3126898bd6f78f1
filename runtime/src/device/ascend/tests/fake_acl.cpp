// A stand-in for the vendor's runtime and run-time compiler, built by the tests: memory is the host's, "device code" is the
// text itself, and a launch calls back into the test, which runs the text on the model of an AI core.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

#define API extern "C" __attribute__((visibility("default")))

typedef int (*launch_t)(
    const char* text, size_t bytes, const char* entry, uint32_t arch, uint32_t blocks, void** arguments);

static launch_t launch_callback;
static std::map<uint64_t, size_t> allocations;
static std::string message;

struct Binary {
    std::string text;
    uint32_t magic;
};
struct Kernel {
    Binary* binary;
    std::string name;
};
struct Program {
    std::string text, log;
};
struct Option {
    uint32_t kind, value[4];
};
struct Options {
    Option* options;
    size_t count;
};

static int fail(int code, const char* why)
{
    message = why;
    return code;
}

// For the test: who runs launches, and how many bytes lie from an address to the end of its allocation.
API void fake_acl_run_with(launch_t launch) { launch_callback = launch; }
API size_t fake_acl_bytes(uint64_t address)
{
    auto it = allocations.upper_bound(address);
    if (it == allocations.begin()) return 0;
    --it;
    return address < it->first + it->second ? it->first + it->second - address : 0;
}
API size_t fake_acl_live() { return allocations.size(); }

API int aclInit(const char*) { return 0; }
API const char* aclGetRecentErrMsg() { return message.empty() ? nullptr : message.c_str(); }
API const char* aclrtGetSocName() { return CHIP; }
API int aclrtGetDeviceCount(uint32_t* count) { return *count = 1, 0; }
API int aclrtGetDeviceInfo(uint32_t, int, int64_t* value) { return *value = 3, 0; }
API int aclrtSetDevice(int32_t) { return 0; }
API int aclrtCreateContext(void** context, int32_t) { return *context = malloc(1), 0; }
API int aclrtDestroyContext(void* context) { return free(context), 0; }
API int aclrtSetCurrentContext(void* context) { return context ? 0 : fail(100000, "no context"); }
API int aclrtSynchronizeDevice() { return 0; }
API int aclrtMalloc(void** address, size_t bytes, int)
{
    if (bytes > 1u << 30) return fail(207001, "the fake device has 1 GiB");
    *address = aligned_alloc(512, (bytes + 511) / 512 * 512);
    allocations[(uint64_t)*address] = bytes;
    return 0;
}
API int aclrtFree(void* address)
{
    if (!allocations.erase((uint64_t)address)) return fail(100000, "freed twice");
    return free(address), 0;
}
API int aclrtGetMemInfo(int, size_t* free_bytes, size_t* total) { return *free_bytes = *total = 1u << 30, 0; }
API int aclrtMemcpy(void* to, size_t room, const void* from, size_t bytes, int kind)
{
    const uint64_t device = (uint64_t)(kind == 1 ? to : from);
    if (bytes > room || (bytes > 0 && bytes > fake_acl_bytes(device))) return fail(100000, "a copy outside its memory");
    return memcpy(to, from, bytes), 0;
}
API int aclrtMemset(void* address, size_t room, int32_t value, size_t bytes)
{
    if (bytes > room || bytes > fake_acl_bytes((uint64_t)address)) return fail(100000, "a fill outside its memory");
    return memset(address, value, bytes), 0;
}
API int aclrtCreateStream(void** stream) { return *stream = malloc(1), 0; }
API int aclrtDestroyStream(void* stream) { return free(stream), 0; }
API int aclrtSynchronizeStream(void*) { return 0; }
static uint64_t ticks;
API int aclrtCreateEventExWithFlag(void** event, uint32_t) { return *event = new uint64_t(0), 0; }
API int aclrtRecordEvent(void* event, void*) { return *(uint64_t*)event = ++ticks, 0; }
API int aclrtSynchronizeEvent(void*) { return 0; }
API int aclrtEventElapsedTime(float* ms, void* start, void* end)
{
    return *ms = (float)(*(uint64_t*)end - *(uint64_t*)start), 0;
}
API int aclrtDestroyEvent(void* event) { return delete (uint64_t*)event, 0; }
API int aclrtBinaryLoadFromData(const void* data, size_t bytes, const Options* options, void** binary)
{
    Binary* b = new Binary{std::string((const char*)data, bytes), 0};
    for (size_t i = 0; options && i < options->count; i++) {
        if (options->options[i].kind == 2) b->magic = options->options[i].value[0];
    }
    return *binary = b, 0;
}
API int aclrtBinaryUnLoad(void* binary) { return delete (Binary*)binary, 0; }
API int aclrtBinaryGetFunction(void* binary, const char* name, void** function)
{
    Binary* b = (Binary*)binary;
    if (b->text.find(std::string("void ") + name + "(") == std::string::npos) return fail(500003, "no such kernel");
    // Code of vector cores says so when it is loaded.
    const bool vector = b->text.find("__vector__") != std::string::npos;
    if (b->magic != (vector ? 0x41415246u : 0x43554245u)) return fail(100000, "another kind of core");
    return *function = new Kernel{b, name}, 0;
}
#ifndef WITHOUT_LAUNCH
API int aclrtLaunchKernelWithArgsArray(void* function, uint32_t blocks, void*, void*, void** arguments)
{
    Kernel* k = (Kernel*)function;
    if (!launch_callback) return fail(507015, "nobody runs launches");
    const std::string& t = k->binary->text;
    const int code = launch_callback(t.c_str(), t.size(), k->name.c_str(), ARCH, blocks, arguments);
    return code ? fail(code, "the model found defects") : 0;
}
#endif

API int aclrtcCreateProg(void** program, const char* text, const char*, int32_t, const char* const*, const char* const*)
{
    return *program = new Program{text, ""}, 0;
}
API int aclrtcCompileProg(void* program, int32_t count, const char* const* options)
{
    const std::string want = "--npu-arch=dav-" + std::to_string(ARCH);
    for (int32_t i = 0; i < count; i++) {
        if (want == options[i]) return 0;
    }
    ((Program*)program)->log = "this compiler is for " + want;
    return 500003;
}
API int aclrtcGetBinDataSize(void* program, size_t* bytes) { return *bytes = ((Program*)program)->text.size(), 0; }
API int aclrtcGetBinData(void* program, char* data)
{
    const std::string& t = ((Program*)program)->text;
    return memcpy(data, t.data(), t.size()), 0;
}
API int aclrtcGetCompileLogSize(void* program, size_t* bytes) { return *bytes = ((Program*)program)->log.size(), 0; }
API int aclrtcGetCompileLog(void* program, char* text)
{
    const std::string& t = ((Program*)program)->log;
    return memcpy(text, t.data(), t.size()), 0;
}
API int aclrtcDestroyProg(void** program) { return delete (Program*)*program, *program = nullptr, 0; }
