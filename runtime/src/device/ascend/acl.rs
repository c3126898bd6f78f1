//! The vendor's runtime behind safe values: context, memory, stream, event, device code. Each frees itself, and each keeps
//! the library and the context it belongs to.

use ascendc_sys::{self as sys, Acl, AclError};
use std::ffi::{CStr, CString, c_void};
use std::sync::{Arc, Mutex, PoisonError};

/// Result of the vendor's calls.
pub(super) type Result<T> = std::result::Result<T, sys::Error>;

/// A device with a context of ours. Calls that act on "the current context" make it current first.
#[derive(Debug)]
pub(super) struct Context {
    acl: Arc<Acl>,
    handle: sys::Context,
    /// Calls between making the context current and using it must not interleave with those of others on one thread.
    ordinal: i32,
}

// SAFETY: ACL's handles may be used from any thread that makes their context current; `enter` does before each use.
unsafe impl Send for Context {}
// SAFETY: as above; the library locks its own state.
unsafe impl Sync for Context {}

/// `aclInit` happens once in a process, whatever the number of libraries and devices.
static INITIALISED: Mutex<bool> = Mutex::new(false);

/// Turns a code into a result, with what the library says.
pub(super) fn check(acl: &Acl, call: &'static str, code: Result<AclError>) -> Result<()> {
    match code? {
        sys::ACL_SUCCESS => Ok(()),
        code => {
            // SAFETY: no arguments; the text belongs to this thread and is copied before the next call.
            let message = match unsafe { acl.aclGetRecentErrMsg() } {
                Ok(text) if !text.is_null() => {
                    // SAFETY: it is a string that ends with 0.
                    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
                }
                Ok(_) | Err(_) => String::new(),
            };
            Err(sys::Error::Acl { call, code, message })
        }
    }
}

/// Starts the library; being started already is fine.
pub(super) fn initialise(acl: &Acl) -> Result<()> {
    let mut done = INITIALISED.lock().unwrap_or_else(PoisonError::into_inner);
    if *done {
        return Ok(());
    }
    // SAFETY: a null path means no configuration file.
    match unsafe { acl.aclInit(std::ptr::null()) } {
        Ok(sys::ACL_ERROR_REPEAT_INITIALIZE) => {}
        code => check(acl, "aclInit", code)?,
    }
    *done = true;
    Ok(())
}

/// Number of devices.
pub(super) fn count(acl: &Acl) -> Result<u32> {
    let mut n = 0;
    // SAFETY: writes one number to the address of a live one.
    check(acl, "aclrtGetDeviceCount", unsafe { acl.aclrtGetDeviceCount(&mut n) })?;
    Ok(n)
}

impl Context {
    pub fn new(acl: Arc<Acl>, ordinal: i32) -> Result<Arc<Self>> {
        let mut handle = sys::Context::NULL;
        // SAFETY: numbers, and the address of a live handle.
        unsafe {
            check(&acl, "aclrtSetDevice", acl.aclrtSetDevice(ordinal))?;
            check(&acl, "aclrtCreateContext", acl.aclrtCreateContext(&mut handle, ordinal))?;
        }
        Ok(Arc::new(Context { acl, handle, ordinal }))
    }

    /// Makes the context this thread's.
    fn enter(&self) -> Result<&Acl> {
        // SAFETY: the handle is live as long as `self`.
        check(&self.acl, "aclrtSetCurrentContext", unsafe { self.acl.aclrtSetCurrentContext(self.handle) })?;
        Ok(&self.acl)
    }

    /// Name of the chip.
    pub fn chip(&self) -> Result<String> {
        // SAFETY: no arguments; the text lives as long as the library.
        let name = unsafe { self.enter()?.aclrtGetSocName()? };
        // SAFETY: null, or a string that ends with 0.
        Ok(if name.is_null() { String::new() } else { unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned() })
    }

    /// An attribute of the device.
    pub fn attribute(&self, which: i32) -> Result<i64> {
        let mut value = 0;
        // SAFETY: numbers, and the address of a live number.
        let code = unsafe { self.acl.aclrtGetDeviceInfo(self.ordinal as u32, which, &mut value) };
        check(&self.acl, "aclrtGetDeviceInfo", code)?;
        Ok(value)
    }

    /// Free and total bytes of memory.
    pub fn memory(&self) -> Result<(usize, usize)> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: addresses of live numbers.
        let code = unsafe { self.enter()?.aclrtGetMemInfo(sys::ACL_HBM_MEM, &mut free, &mut total) };
        check(&self.acl, "aclrtGetMemInfo", code)?;
        Ok((free, total))
    }

    /// Waits for everything on the device.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: no arguments.
        check(&self.acl, "aclrtSynchronizeDevice", unsafe { self.enter()?.aclrtSynchronizeDevice() })
    }

    /// Zeroed memory.
    pub fn alloc(self: &Arc<Self>, bytes: usize) -> Result<Buffer> {
        let room = bytes.max(32);
        let mut address = std::ptr::null_mut();
        let acl = self.enter()?;
        // SAFETY: the address of a live pointer; then that memory, whole.
        unsafe {
            check(acl, "aclrtMalloc", acl.aclrtMalloc(&mut address, room, sys::ACL_MEM_MALLOC_HUGE_FIRST))?;
            let buffer = Buffer { context: Arc::clone(self), address, bytes };
            check(acl, "aclrtMemset", acl.aclrtMemset(address, room, 0, room))?;
            Ok(buffer)
        }
    }

    pub fn stream(self: &Arc<Self>) -> Result<Stream> {
        let mut handle = sys::Stream::NULL;
        // SAFETY: the address of a live handle.
        check(&self.acl, "aclrtCreateStream", unsafe { self.enter()?.aclrtCreateStream(&mut handle) })?;
        Ok(Stream { context: Arc::clone(self), handle })
    }

    /// Loads device code and finds its entry.
    pub fn load(self: &Arc<Self>, image: &[u8], entry: &str, mixed: bool) -> Result<Kernel> {
        let magic = if mixed { sys::ACL_RT_BINARY_MAGIC_ELF_AICORE } else { sys::ACL_RT_BINARY_MAGIC_ELF_VECTOR_CORE };
        let mut option = sys::BinaryLoadOption { kind: sys::ACL_RT_BINARY_LOAD_OPT_MAGIC, value: [magic, 0, 0, 0] };
        let options = sys::BinaryLoadOptions { options: &mut option, count: 1 };
        let mut binary = sys::Binary::NULL;
        let acl = self.enter()?;
        // SAFETY: the image, the options and the handle live across the call, which copies what it keeps.
        let code = unsafe { acl.aclrtBinaryLoadFromData(image.as_ptr().cast(), image.len(), &options, &mut binary) };
        check(acl, "aclrtBinaryLoadFromData", code)?;
        let mut kernel = Kernel { context: Arc::clone(self), binary, function: sys::Function::NULL };
        let name = CString::new(entry).unwrap_or_default();
        // SAFETY: the binary is loaded; the name and the handle live across the call.
        let code = unsafe { acl.aclrtBinaryGetFunction(binary, name.as_ptr(), &mut kernel.function) };
        check(acl, "aclrtBinaryGetFunction", code)?;
        Ok(kernel)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: everything that used the context held a reference to it. Errors at the end have nobody to go to.
        let _ = unsafe { self.acl.aclrtDestroyContext(self.handle) };
    }
}

/// Memory of the device.
#[derive(Debug)]
pub(super) struct Buffer {
    context: Arc<Context>,
    address: *mut c_void,
    bytes: usize,
}

// SAFETY: a buffer is an address on the device; the host never follows it.
unsafe impl Send for Buffer {}
// SAFETY: as above; copies wait for the device.
unsafe impl Sync for Buffer {}

impl Buffer {
    pub fn address(&self) -> u64 {
        self.address as u64
    }
    pub fn len(&self) -> usize {
        self.bytes
    }
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        assert!(offset + bytes.len() <= self.bytes, "written within the buffer");
        self.context.synchronize()?;
        let to = self.address.wrapping_byte_add(offset);
        let (room, from) = (self.bytes - offset, bytes.as_ptr().cast());
        // SAFETY: both ranges are within live memory, as asserted; nothing runs on the device.
        let code = unsafe { self.context.acl.aclrtMemcpy(to, room, from, bytes.len(), sys::ACL_MEMCPY_HOST_TO_DEVICE) };
        check(&self.context.acl, "aclrtMemcpy", code)
    }
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<()> {
        assert!(offset + out.len() <= self.bytes, "read within the buffer");
        self.context.synchronize()?;
        let from = self.address.wrapping_byte_add(offset).cast_const();
        let (to, room) = (out.as_mut_ptr().cast(), out.len());
        // SAFETY: both ranges are within live memory, as asserted; nothing runs on the device.
        let code = unsafe { self.context.acl.aclrtMemcpy(to, room, from, room, sys::ACL_MEMCPY_DEVICE_TO_HOST) };
        check(&self.context.acl, "aclrtMemcpy", code)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // Launches may still use it.
        let _ = self.context.synchronize();
        // SAFETY: it came from `aclrtMalloc`, and nothing runs that could use it.
        let _ = unsafe { self.context.acl.aclrtFree(self.address) };
    }
}

/// A queue of launches.
#[derive(Debug)]
pub(super) struct Stream {
    context: Arc<Context>,
    handle: sys::Stream,
}

// SAFETY: as for `Context`.
unsafe impl Send for Stream {}
// SAFETY: as for `Context`.
unsafe impl Sync for Stream {}

impl Stream {
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the handle is live as long as `self`.
        let code = unsafe { self.context.enter()?.aclrtSynchronizeStream(self.handle) };
        check(&self.context.acl, "aclrtSynchronizeStream", code)
    }

    /// Launches a kernel with arguments of at most eight bytes each.
    pub fn launch(&self, kernel: &Kernel, blocks: u32, words: &mut [u64]) -> Result<()> {
        let mut places: Vec<*mut c_void> = words.iter_mut().map(|w| std::ptr::from_mut(w).cast()).collect();
        let acl = self.context.enter()?;
        // SAFETY: one live slot an argument, in the order of the entry's; the call copies the values before it returns.
        // Addresses among them belong to tensors whose memory waits for the device before it is freed.
        let code = unsafe {
            acl.aclrtLaunchKernelWithArgsArray(
                kernel.function.0,
                blocks,
                self.handle,
                std::ptr::null_mut(),
                places.as_mut_ptr(),
            )
        };
        check(acl, "aclrtLaunchKernelWithArgsArray", code)
    }

    pub fn record(&self) -> Result<Event> {
        let mut handle = sys::Event::NULL;
        let acl = self.context.enter()?;
        // SAFETY: the address of a live handle; then that handle and this stream's.
        unsafe {
            let code = acl.aclrtCreateEventExWithFlag(&mut handle, sys::ACL_EVENT_TIME_LINE);
            check(acl, "aclrtCreateEventExWithFlag", code)?;
            let event = Event { context: Arc::clone(&self.context), handle };
            check(acl, "aclrtRecordEvent", acl.aclrtRecordEvent(handle, self.handle))?;
            Ok(event)
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let _ = self.synchronize();
        // SAFETY: it came from `aclrtCreateStream`, and all it was given is done.
        let _ = unsafe { self.context.acl.aclrtDestroyStream(self.handle) };
    }
}

/// A point in a stream's time.
#[derive(Debug)]
pub(super) struct Event {
    context: Arc<Context>,
    handle: sys::Event,
}

// SAFETY: as for `Context`.
unsafe impl Send for Event {}
// SAFETY: as for `Context`.
unsafe impl Sync for Event {}

impl Event {
    /// Microseconds until `end`; waits for both.
    pub fn elapsed_us(&self, end: &Event) -> Result<f64> {
        let acl = self.context.enter()?;
        let mut ms = 0.0;
        // SAFETY: live handles, and the address of a live number.
        unsafe {
            check(acl, "aclrtSynchronizeEvent", acl.aclrtSynchronizeEvent(self.handle))?;
            check(acl, "aclrtSynchronizeEvent", acl.aclrtSynchronizeEvent(end.handle))?;
            check(acl, "aclrtEventElapsedTime", acl.aclrtEventElapsedTime(&mut ms, self.handle, end.handle))?;
        }
        Ok(f64::from(ms) * 1e3)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: it came from `aclrtCreateEventExWithFlag`.
        let _ = unsafe { self.context.acl.aclrtDestroyEvent(self.handle) };
    }
}

/// Device code with its entry.
#[derive(Debug)]
pub(super) struct Kernel {
    context: Arc<Context>,
    binary: sys::Binary,
    function: sys::Function,
}

// SAFETY: as for `Context`.
unsafe impl Send for Kernel {}
// SAFETY: as for `Context`.
unsafe impl Sync for Kernel {}

impl Drop for Kernel {
    fn drop(&mut self) {
        let _ = self.context.synchronize();
        // SAFETY: it came from `aclrtBinaryLoadFromData`, and nothing of it runs.
        let _ = unsafe { self.context.acl.aclrtBinaryUnLoad(self.binary) };
    }
}
