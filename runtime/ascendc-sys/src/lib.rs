//! Raw declarations of Huawei's Ascend runtime (ACL) and run-time compiler, loaded when first asked for, so that every
//! machine builds. Declarations and loading only: nothing here is safe, checked or logged; `kiln-runtime` does that.
//!
//! Names, types and numbers are those of the public ACL headers; a test of `kiln-runtime` compares sizes, offsets, values and
//! prototypes with them ([`PROTOTYPES`]). A symbol is looked up when it is called, so an older library serves whoever does
//! not need what it lacks.
#![allow(unsafe_code, reason = "foreign functions")]
#![allow(non_snake_case, reason = "names of the vendor's functions")]
#![allow(clippy::missing_safety_doc, reason = "contracts are those of the vendor's functions of the same names")]

mod load;

pub use load::{Acl, Error, Rtc, code_name};

use std::ffi::{c_char, c_void};

/// Result of a call; 0 is success.
pub type AclError = i32;
/// Success.
pub const ACL_SUCCESS: AclError = 0;
/// `aclInit` was called before; harmless.
pub const ACL_ERROR_REPEAT_INITIALIZE: AclError = 100_002;

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[repr(transparent)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name(pub *mut c_void);
        impl $name {
            /// No handle.
            pub const NULL: $name = $name(std::ptr::null_mut());
        }
        impl Abi for $name {
            const POINTER: bool = true;
        }
    )*};
}
handles! {
    /// `aclrtContext`.
    Context;
    /// `aclrtStream`.
    Stream;
    /// `aclrtEvent`.
    Event;
    /// `aclrtBinHandle`.
    Binary;
    /// `aclrtFuncHandle`.
    Function;
    /// `aclrtcProg`.
    Program;
}

/// `aclrtMemcpyKind`: host to device.
pub const ACL_MEMCPY_HOST_TO_DEVICE: i32 = 1;
/// `aclrtMemcpyKind`: device to host.
pub const ACL_MEMCPY_DEVICE_TO_HOST: i32 = 2;
/// `aclrtMemMallocPolicy`: huge pages if there are some.
pub const ACL_MEM_MALLOC_HUGE_FIRST: i32 = 0;
/// `aclrtMemAttr`: memory on the package.
pub const ACL_HBM_MEM: i32 = 1;
/// `aclrtDevAttr`: number of cube cores.
pub const ACL_DEV_ATTR_CUBE_CORE_NUM: i32 = 102;
/// `aclrtDevAttr`: number of vector cores.
pub const ACL_DEV_ATTR_VECTOR_CORE_NUM: i32 = 201;
/// Flag of events that take times.
pub const ACL_EVENT_TIME_LINE: u32 = 8;
/// `aclrtBinaryLoadOptionType`: what kind of cores the binary is for.
pub const ACL_RT_BINARY_LOAD_OPT_MAGIC: u32 = 2;
/// Binary of cube cores and their vector cores.
pub const ACL_RT_BINARY_MAGIC_ELF_AICORE: u32 = 0x4355_4245;
/// Binary of vector cores.
pub const ACL_RT_BINARY_MAGIC_ELF_VECTOR_CORE: u32 = 0x4141_5246;
/// `aclrtLaunchKernelAttrId`: seconds after which a launch is given up.
pub const ACL_RT_LAUNCH_KERNEL_ATTR_TIMEOUT: u32 = 7;

/// `aclrtBinaryLoadOption`; the value is a union of four words.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BinaryLoadOption {
    /// Which.
    pub kind: u32,
    /// Its value, in the first word.
    pub value: [u32; 4],
}

/// `aclrtBinaryLoadOptions`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BinaryLoadOptions {
    /// List.
    pub options: *mut BinaryLoadOption,
    /// Its length.
    pub count: usize,
}

/// `aclrtLaunchKernelAttr`; the value is a union of four words.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LaunchKernelAttr {
    /// Which.
    pub id: u32,
    /// Its value.
    pub value: [u32; 4],
}

/// `aclrtLaunchKernelCfg`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LaunchKernelCfg {
    /// List.
    pub attrs: *mut LaunchKernelAttr,
    /// Its length.
    pub count: usize,
}

/// How a type crosses the call.
pub trait Abi {
    /// It is an address.
    const POINTER: bool;
}
impl Abi for i32 {
    const POINTER: bool = false;
}
impl Abi for u32 {
    const POINTER: bool = false;
}
impl Abi for usize {
    const POINTER: bool = false;
}
impl<T> Abi for *const T {
    const POINTER: bool = true;
}
impl<T> Abi for *mut T {
    const POINTER: bool = true;
}

/// Size of a type in bytes, and whether it is an address.
pub type Shape = (usize, bool);

/// A declaration as the headers are compared with it: name, parameters, result.
pub type Prototype = (&'static str, &'static [Shape], Shape);

const fn shape<T: Abi>() -> Shape {
    (size_of::<T>(), T::POINTER)
}

macro_rules! functions {
    ($library:ident, $list:ident: $($(#[$doc:meta])* $since:literal fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty;)*) => {
        impl $library {$(
            $(#[$doc])*
            ///
            /// # Errors
            /// The library does not have the function.
            pub unsafe fn $name(&self, $($arg: $ty),*) -> Result<$ret, Error> {
                type Call = unsafe extern "C" fn($($ty),*) -> $ret;
                // SAFETY: the vendor declares the function with this type.
                let call = unsafe { self.symbol::<Call>(stringify!($name), $since)? };
                // SAFETY: the caller vouches for the arguments.
                Ok(unsafe { call($($arg),*) })
            }
        )*}
        /// Every declaration of the library above.
        pub const $list: &[Prototype] = &[$((stringify!($name), &[$(shape::<$ty>()),*], shape::<$ret>())),*];
    };
}

functions! {
    Acl, PROTOTYPES:
    /// Once per process; the path names a configuration file or is null.
    "5.0" fn aclInit(config: *const c_char) -> AclError;
    /// Text about the last error of this thread, or null.
    "5.0" fn aclGetRecentErrMsg() -> *const c_char;
    /// Name of the chip.
    "5.0" fn aclrtGetSocName() -> *const c_char;
    /// Number of devices.
    "5.0" fn aclrtGetDeviceCount(count: *mut u32) -> AclError;
    /// An attribute of a device.
    "8.1" fn aclrtGetDeviceInfo(device: u32, attribute: i32, value: *mut i64) -> AclError;
    /// Chooses the device of this thread.
    "5.0" fn aclrtSetDevice(device: i32) -> AclError;
    /// Frees what this process has on a device.
    "5.0" fn aclrtResetDevice(device: i32) -> AclError;
    /// Makes a context.
    "5.0" fn aclrtCreateContext(context: *mut Context, device: i32) -> AclError;
    /// Frees a context.
    "5.0" fn aclrtDestroyContext(context: Context) -> AclError;
    /// Chooses the context of this thread.
    "5.0" fn aclrtSetCurrentContext(context: Context) -> AclError;
    /// Waits for everything on the device of this thread.
    "5.0" fn aclrtSynchronizeDevice() -> AclError;
    /// Allocates.
    "5.0" fn aclrtMalloc(address: *mut *mut c_void, bytes: usize, policy: i32) -> AclError;
    /// Frees.
    "5.0" fn aclrtFree(address: *mut c_void) -> AclError;
    /// Free and total bytes.
    "5.0" fn aclrtGetMemInfo(kind: i32, free: *mut usize, total: *mut usize) -> AclError;
    /// Copies.
    "5.0" fn aclrtMemcpy(to: *mut c_void, room: usize, from: *const c_void, bytes: usize, kind: i32) -> AclError;
    /// Fills.
    "5.0" fn aclrtMemset(address: *mut c_void, room: usize, value: i32, bytes: usize) -> AclError;
    /// Makes a stream.
    "5.0" fn aclrtCreateStream(stream: *mut Stream) -> AclError;
    /// Frees a stream.
    "5.0" fn aclrtDestroyStream(stream: Stream) -> AclError;
    /// Waits for a stream.
    "5.0" fn aclrtSynchronizeStream(stream: Stream) -> AclError;
    /// Makes an event.
    "8.0" fn aclrtCreateEventExWithFlag(event: *mut Event, flag: u32) -> AclError;
    /// Puts an event into a stream.
    "5.0" fn aclrtRecordEvent(event: Event, stream: Stream) -> AclError;
    /// Waits for an event.
    "5.0" fn aclrtSynchronizeEvent(event: Event) -> AclError;
    /// Milliseconds between two events.
    "5.0" fn aclrtEventElapsedTime(ms: *mut f32, start: Event, end: Event) -> AclError;
    /// Frees an event.
    "5.0" fn aclrtDestroyEvent(event: Event) -> AclError;
    /// Loads device code.
    "8.2" fn aclrtBinaryLoadFromData(
        data: *const c_void,
        bytes: usize,
        options: *const BinaryLoadOptions,
        binary: *mut Binary
    ) -> AclError;
    /// Loads device code of a file.
    "8.0" fn aclrtBinaryLoadFromFile(
        path: *const c_char,
        options: *mut BinaryLoadOptions,
        binary: *mut Binary
    ) -> AclError;
    /// Frees device code.
    "8.0" fn aclrtBinaryUnLoad(binary: Binary) -> AclError;
    /// A kernel of device code.
    "8.0" fn aclrtBinaryGetFunction(binary: Binary, name: *const c_char, function: *mut Function) -> AclError;
    /// Launches a kernel with the addresses of its arguments.
    "9.0" fn aclrtLaunchKernelWithArgsArray(
        function: *mut c_void,
        blocks: u32,
        stream: Stream,
        config: *mut LaunchKernelCfg,
        arguments: *mut *mut c_void
    ) -> AclError;
}

functions! {
    Rtc, RTC_PROTOTYPES:
    /// Makes a program of a text.
    "9.0" fn aclrtcCreateProg(
        program: *mut Program,
        text: *const c_char,
        name: *const c_char,
        headers: i32,
        sources: *const *const c_char,
        names: *const *const c_char
    ) -> AclError;
    /// Compiles.
    "9.0" fn aclrtcCompileProg(program: Program, count: i32, options: *const *const c_char) -> AclError;
    /// Bytes of the device code.
    "9.0" fn aclrtcGetBinDataSize(program: Program, bytes: *mut usize) -> AclError;
    /// The device code.
    "9.0" fn aclrtcGetBinData(program: Program, data: *mut c_char) -> AclError;
    /// Bytes of the compiler's messages.
    "9.0" fn aclrtcGetCompileLogSize(program: Program, bytes: *mut usize) -> AclError;
    /// The compiler's messages.
    "9.0" fn aclrtcGetCompileLog(program: Program, text: *mut c_char) -> AclError;
    /// Frees a program.
    "9.0" fn aclrtcDestroyProg(program: *mut Program) -> AclError;
}
