//! The device against a stand-in for CANN that runs launches on the model of an AI core; declarations against the vendor's
//! headers.
#![allow(clippy::print_stdout, reason = "a skip says why")]

use super::*;
use crate::device::sim::ascend::{Argument, run};
use crate::device::sim::{Exploration, HostCompiler};
use crate::device::{Device, open_with};
use kiln_codegen::abi::{Launcher, TensorView};
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::{Access, DType};
use kiln_codegen::machine::ascend::Arch;
use libloading::Library;
use std::ffi::{CStr, c_char, c_void};
use std::path::Path;
use std::process::Command;

#[path = "../../../../tests/runtime/scale.rs"]
#[allow(dead_code, reason = "the runtime's own tests use the rest")]
mod scale;

use scale::Scale;

/// Folder of a stand-in: its `lib64` has both libraries.
fn stand_in(chip: &str, arch: u32, flags: &[&str]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    let lib = dir.path().join("lib64");
    std::fs::create_dir_all(&lib).expect("a folder");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/device/ascend/tests/fake_acl.cpp");
    let runtime = lib.join("libascendcl.so");
    let output = Command::new(&Settings::from_env().cxx)
        .args(["-std=c++17", "-O0", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror"])
        .arg(format!("-DCHIP=\"{chip}\""))
        .arg(format!("-DARCH={arch}"))
        .args(flags)
        .arg("-o")
        .arg(&runtime)
        .arg(source)
        .output()
        .expect("a compiler");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::copy(&runtime, lib.join("libacl_rtc.so")).expect("a copy");
    dir
}

fn settings(homes: &[&Path]) -> Settings {
    Settings { ascend_homes: homes.iter().map(|p| p.to_path_buf()).collect(), ..Settings::from_env() }
}

thread_local! {
    /// Finds the bytes behind an address of the stand-in that launches on this thread.
    static BYTES: std::cell::Cell<Option<extern "C" fn(u64) -> usize>> = const { std::cell::Cell::new(None) };
}

/// Runs a launch of the stand-in on the model. Every argument that is an address of its memory is a tensor of bytes.
extern "C" fn launch(
    text: *const c_char,
    bytes: usize,
    entry: *const c_char,
    arch: u32,
    blocks: u32,
    arguments: *mut *mut c_void,
) -> i32 {
    // SAFETY: the stand-in passes its text with its length, a name that ends with 0, and as many addresses of eight bytes as
    // the entry has arguments.
    let (text, entry) = unsafe {
        let text = std::slice::from_raw_parts(text.cast::<u8>(), bytes);
        (String::from_utf8_lossy(text).into_owned(), CStr::from_ptr(entry).to_string_lossy().into_owned())
    };
    let arch = if arch == 2201 { Arch::A2201 } else { Arch::A3510 };
    let compiler = HostCompiler::new(&Settings::from_env(), std::env::temp_dir().join("kiln-fake-acl"));
    let program = compiler.load_ascend(&text, &entry, arch).expect("compiles");
    let room = BYTES.get().expect("a test has chosen its stand-in");
    // Scratch memory is known by its name.
    let parameters = text.split(&format!("void {entry}(")).nth(1).and_then(|t| t.split(')').next()).unwrap_or_default();
    let is_scratch: Vec<bool> = parameters
        .split(',')
        .map(|p| ["ws", "workspace"].iter().any(|n| p.trim().ends_with(&format!(" {n}"))))
        .collect();
    let mut tensors = vec![];
    let args: Vec<Argument> = (0..program.arity)
        .map(|i| {
            // SAFETY: as above.
            let word = unsafe { *(*arguments.add(i)).cast::<u64>() };
            let n = room(word);
            if n == 0 {
                return Argument::Word(word);
            }
            if is_scratch.get(i) == Some(&true) {
                return Argument::Workspace { bytes: n };
            }
            // SAFETY: the stand-in says that so many bytes lie there; nothing else uses them during a launch.
            let memory = Arc::new(HostMemory::from_bytes(unsafe { std::slice::from_raw_parts(word as *const u8, n) }));
            let view = TensorView::contiguous(DType::U8, &[n], Arc::clone(&memory) as Arc<dyn Memory>);
            tensors.push((word, memory));
            Argument::Tensor { name: format!("argument {i}"), access: Access::InOut, view }
        })
        .collect();
    let report = run(&program, blocks, &args, &Exploration::new(2)).expect("runs");
    for (address, memory) in tensors {
        let bytes = memory.to_bytes();
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len()) };
    }
    for f in report.findings.list() {
        println!("line {}: {}: {}", f.line, f.code, f.message);
    }
    if report.findings.is_empty() { 0 } else { 507_015 }
}

/// Opens the stand-in's device and lets it run launches on the model.
fn device(home: &Path) -> (Device, Library) {
    let device = open_with("ascend:0", &settings(&[home])).unwrap_or_else(|e| panic!("{e}"));
    // SAFETY: the library is the stand-in, which is loaded already.
    let library = unsafe { Library::new(home.join("lib64/libascendcl.so")) }.expect("the same library");
    // SAFETY: these are the stand-in's own functions with their types.
    unsafe {
        let set = library.get::<extern "C" fn(
            extern "C" fn(*const c_char, usize, *const c_char, u32, u32, *mut *mut c_void) -> i32,
        )>(b"fake_acl_run_with");
        set.expect("exported")(launch);
        BYTES.set(Some(*library.get::<extern "C" fn(u64) -> usize>(b"fake_acl_bytes").expect("exported")));
    }
    (device, library)
}

#[test]
fn chips_have_their_instruction_set() {
    let pairs = [
        ("Ascend910B1", Some(Target::Ascend910b)),
        ("Ascend910_9391", Some(Target::Ascend910b)),
        ("Ascend950PR_9579", Some(Target::Ascend950)),
        ("Ascend910A", None),
        ("Ascend310P3", None),
        ("", None),
    ];
    for (chip, target) in pairs {
        assert_eq!(target_of(chip), target, "{chip}");
    }
}

/// Bytes that the stand-in has allocated.
fn live(library: &Library) -> usize {
    // SAFETY: the stand-in's own function with its type.
    unsafe { library.get::<extern "C" fn() -> usize>(b"fake_acl_live").expect("exported")() }
}

#[test]
fn launches_run_end_to_end() {
    let home = stand_in("Ascend950PR_9579", 3510, &[]);
    let (device, library) = device(home.path());
    assert_eq!((device.name(), device.target(), device.info().units), ("ascend:0", Target::Ascend950, 3));
    let n = 1000;
    let values: Vec<f64> = (0..n).map(|i| i as f64 * 0.25 - 100.0).collect();
    let x = device.upload(&HostTensor::from_f64(DType::F32, &[n], &values)).expect("fits");
    let y = device.zeros(DType::F32, &[n]).expect("fits");
    let stream = device.stream().expect("opens");
    let start = stream.record().expect("records");
    stream.launch(&Scale::launch(x, y.clone(), 3.0)).unwrap_or_else(|e| panic!("{e}"));
    let end = stream.record().expect("records");
    stream.synchronize().expect("runs");
    assert!(start.elapsed_us(&end).expect("two events") > 0.0);
    let got = device.download(&y).expect("reads").to_f64();
    assert_eq!(got, values.iter().map(|v| v * 3.0).collect::<Vec<_>>());
    drop((y, stream, start, end, device));
    assert_eq!(live(&library), 0, "everything was freed");
}

#[test]
fn mixed_kernels_and_scratch_run_on_the_older_chip() {
    let home = stand_in("Ascend910B3", 2201, &[]);
    let (opened, library) = device(home.path());
    assert_eq!(opened.target(), Target::Ascend910b);
    drop(opened);
    let acl = Acl::open_in(&[home.path().to_path_buf()]).expect("there");
    let context = Context::new(Arc::new(acl), 0).expect("opens");
    // c [m, n] = scale * a b^T; what the kernel computes is checked where it lives.
    let (m, n, k, blocks) = (20usize, 24usize, 40usize, 2u32);
    let number = |i: usize| (i * 7 % 23) as f32 * 0.25 - 2.75;
    let halves = |count: usize| -> Vec<u8> {
        (0..count)
            .flat_map(|i| (kiln_codegen::formats::encode_f32(DType::F16, number(i)) as u16).to_le_bytes())
            .collect()
    };
    let filled = |bytes: &[u8]| {
        let buffer = context.alloc(bytes.len()).expect("fits");
        buffer.write(0, bytes).expect("copies");
        buffer
    };
    let (a, b) = (filled(&halves(m * k)), filled(&halves(n * k)));
    let (c, scratch) = (filled(&vec![0; m * n * 4]), filled(&vec![0; 2 * 32 * 48 * 4 * blocks as usize]));
    let text = include_str!("../../../../tests/ascend_texts/product.2201.asc");
    let kernel = context.load(text.as_bytes(), "product_f16", true).expect("loads");
    let e = context.load(text.as_bytes(), "product_f16", false).expect_err("code of mixed cores");
    assert!(e.to_string().contains("another kind of core"), "{e}");
    let stream = context.stream().expect("opens");
    let scale = u64::from(0.5f32.to_bits());
    let mut words = [a.address(), b.address(), c.address(), scratch.address(), m as u64, n as u64, k as u64, scale];
    stream.launch(&kernel, blocks, &mut words).unwrap_or_else(|e| panic!("{e}"));
    stream.synchronize().expect("runs");
    let mut bytes = vec![0; m * n * 4];
    c.read(0, &mut bytes).expect("copies");
    let got: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b)).collect();
    let element = |i: usize| 0.5 * (0..k).map(|z| number(i / n * k + z) * number(i % n * k + z)).sum::<f32>();
    assert_eq!(got, (0..m * n).map(element).collect::<Vec<_>>());
    drop((a, b, c, scratch, kernel, stream, context));
    assert_eq!(live(&library), 0, "everything was freed");
}

#[test]
fn what_is_missing_is_named() {
    let nowhere = Path::new("/nonexistent/cann");
    let Err(e) = open_with("ascend:0", &settings(&[nowhere])) else { panic!("no CANN there") };
    let text = e.to_string();
    assert_eq!(e.exit_code(), 3, "{text}");
    assert!(text.contains("/nonexistent/cann/lib64/libascendcl.so") && text.contains("ASCEND_HOME_PATH"), "{text}");

    let home = stand_in("Ascend950PR_9579", 3510, &["-DWITHOUT_LAUNCH"]);
    let (device, _library) = device(home.path());
    let Err(e) = open_with("ascend:7", &settings(&[home.path()])) else { panic!("one device") };
    assert!(e.to_string().contains("counts 1 devices") && e.exit_code() == 3, "{e}");
    let (x, y) = (device.zeros(DType::F32, &[8]).expect("fits"), device.zeros(DType::F32, &[8]).expect("fits"));
    let stream = device.stream().expect("opens");
    let e = stream.launch(&Scale::launch(x, y, 3.0)).expect_err("an old runtime");
    assert!(e.to_string().contains("aclrtLaunchKernelWithArgsArray") && e.to_string().contains("CANN 9.0"), "{e}");
    let e = device.alloc(2 << 30).expect_err("too large");
    assert!(matches!(e, Error::OutOfMemory { .. }), "{e}");

    let home = stand_in("Ascend310P3", 3510, &[]);
    let Err(e) = open_with("ascend:0", &settings(&[home.path()])) else { panic!("another chip") };
    assert!(e.to_string().contains("Ascend310P3"), "{e}");
}

#[test]
fn faults_carry_the_vendors_code_and_text() {
    let home = stand_in("Ascend950PR_9579", 3510, &[]);
    let device = open_with("ascend:0", &settings(&[home.path()])).unwrap_or_else(|e| panic!("{e}"));
    let (x, y) = (device.zeros(DType::F32, &[8]).expect("fits"), device.zeros(DType::F32, &[8]).expect("fits"));
    let stream = device.stream().expect("opens");
    // Nobody was told to run launches.
    let text = stream.launch(&Scale::launch(x, y, 3.0)).expect_err("a fault").to_string();
    assert!(text.contains("507015 (AI core exception") && text.contains("nobody runs launches"), "{text}");
}

#[test]
fn code_for_another_chip_is_refused() {
    let definition = Scale::kernel();
    let request = kiln_codegen::spec::BuildRequest {
        config: definition.space().default_config(),
        facts: vec![Default::default(); 3],
        ..Default::default()
    };
    let built = lower::build(&*definition, &request).expect("builds");
    let lowered = lower::source(&built, Target::Ascend950).expect("emits");
    let info = |target: Target| DeviceInfo {
        name: "ascend:0".into(),
        model: "some chip".into(),
        target,
        arch: "dav-2201".into(),
        capability: None,
        units: 1,
        memory_bytes: 0,
        driver: String::new(),
    };
    assert!(fits(&info(Target::Ascend950), &lowered, "scale").is_ok());
    let text = fits(&info(Target::Ascend910b), &lowered, "scale").expect_err("another chip").to_string();
    assert!(text.contains("dav-2201") && text.contains("dav-3510"), "{text}");
}

/// The wheel whose headers the declarations are compared with: name, version, SHA-256.
const HEADERS: (&str, &str, &str) =
    ("torch-npu", "2.14.0", "7736f7d82cf9f16c7dfc4537f7e7c638153da760273a193455e70857f912189e");

/// Fetches the headers once: a wheel pinned by its hash, of which only the headers are kept.
fn headers(settings: &Settings) -> std::result::Result<PathBuf, String> {
    let target = settings.dir.join("acl-headers");
    let inc = target.join("torch_npu/include/third_party/acl/inc");
    if inc.is_dir() {
        return Ok(inc);
    }
    if settings.offline {
        return Err("KILN_OFFLINE is set".into());
    }
    let aside = settings.dir.join(format!(".acl-headers.{}.tmp", std::process::id()));
    std::fs::create_dir_all(&aside).map_err(|e| e.to_string())?;
    let (name, version, sha) = HEADERS;
    let list = aside.join("packages.txt");
    std::fs::write(&list, format!("{name}=={version} --hash=sha256:{sha}\n")).map_err(|e| e.to_string())?;
    let go = |command: &mut Command| -> std::result::Result<(), String> {
        let output = command.current_dir(&aside).output().map_err(|e| e.to_string())?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() { Ok(()) } else { Err(text) }
    };
    // The wheel of one Python, whichever runs here.
    go(Command::new("python3")
        .args(["-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes", "--only-binary=:all:"])
        .args(["--disable-pip-version-check", "--no-input", "--python-version", "3.11", "--implementation", "cp"])
        .args(["--abi", "cp311", "--platform", "manylinux_2_28_x86_64", "--dest", ".", "--requirement"])
        .arg(&list))?;
    let unpack = "import glob, zipfile\n\
                  z = zipfile.ZipFile(glob.glob('*.whl')[0])\n\
                  z.extractall('.', [n for n in z.namelist() if '/third_party/acl/inc/' in n])\n";
    go(Command::new("python3").args(["-c", unpack]))?;
    for entry in std::fs::read_dir(&aside).map_err(|e| e.to_string())?.flatten() {
        if entry.path().extension().is_some_and(|e| e == "whl") {
            let _ = std::fs::remove_file(entry.path());
        }
    }
    let renamed = std::fs::rename(&aside, &target);
    // Another process may have been faster.
    let _ = std::fs::remove_dir_all(&aside);
    if inc.is_dir() { Ok(inc) } else { Err(renamed.err().map_or_else(String::new, |e| e.to_string())) }
}

/// C++ that compiles only if the headers agree with our declarations.
fn comparison() -> String {
    let mut text = String::from(
        "#include <cstddef>\n#include <type_traits>\n#include \"acl/acl.h\"\n#include \"acl/acl_rt.h\"\n\
         struct shape { size_t bytes; bool pointer; };\n\
         template <class T> constexpr shape of() { return {sizeof(T), std::is_pointer<T>::value}; }\n\
         constexpr bool operator==(shape a, shape b) { return a.bytes == b.bytes && a.pointer == b.pointer; }\n\
         template <class R, class... A, size_t N>\n\
         constexpr bool same(R (*)(A...), shape result, const shape (&expected)[N]) {\n\
         const shape all[] = {of<R>(), of<A>()...};\n\
         if (sizeof...(A) + 1 != N || !(all[0] == result)) return false;\n\
         for (size_t i = 1; i < N; i++) if (!(all[i] == expected[i])) return false;\n\
         return true; }\n",
    );
    let shape = |s: &sys::Shape| format!("{{{}, {}}}", s.0, s.1);
    for (name, parameters, result) in sys::PROTOTYPES {
        let all: Vec<String> = std::iter::once(result).chain(*parameters).map(shape).collect();
        text += &format!("constexpr shape {name}_shape[] = {{{}}};\n", all.join(", "));
        text += &format!("static_assert(same(&{name}, {}, {name}_shape), \"{name}\");\n", shape(result));
    }
    let values: [(&str, i64); 12] = [
        ("ACL_MEMCPY_HOST_TO_DEVICE", sys::ACL_MEMCPY_HOST_TO_DEVICE.into()),
        ("ACL_MEMCPY_DEVICE_TO_HOST", sys::ACL_MEMCPY_DEVICE_TO_HOST.into()),
        ("ACL_MEM_MALLOC_HUGE_FIRST", sys::ACL_MEM_MALLOC_HUGE_FIRST.into()),
        ("ACL_HBM_MEM", sys::ACL_HBM_MEM.into()),
        ("ACL_DEV_ATTR_CUBE_CORE_NUM", sys::ACL_DEV_ATTR_CUBE_CORE_NUM.into()),
        ("ACL_DEV_ATTR_VECTOR_CORE_NUM", sys::ACL_DEV_ATTR_VECTOR_CORE_NUM.into()),
        ("ACL_EVENT_TIME_LINE", sys::ACL_EVENT_TIME_LINE.into()),
        ("ACL_RT_BINARY_LOAD_OPT_MAGIC", sys::ACL_RT_BINARY_LOAD_OPT_MAGIC.into()),
        ("ACL_RT_BINARY_MAGIC_ELF_AICORE", sys::ACL_RT_BINARY_MAGIC_ELF_AICORE.into()),
        ("ACL_RT_BINARY_MAGIC_ELF_VECTOR_CORE", sys::ACL_RT_BINARY_MAGIC_ELF_VECTOR_CORE.into()),
        ("ACL_RT_LAUNCH_KERNEL_ATTR_TIMEOUT", sys::ACL_RT_LAUNCH_KERNEL_ATTR_TIMEOUT.into()),
        ("ACL_ERROR_REPEAT_INITIALIZE", sys::ACL_ERROR_REPEAT_INITIALIZE.into()),
    ];
    for (name, value) in values {
        text += &format!("static_assert({name} == {value}, \"{name}\");\n");
    }
    let layouts = [
        (
            "aclrtBinaryLoadOption",
            "value",
            size_of::<sys::BinaryLoadOption>(),
            std::mem::offset_of!(sys::BinaryLoadOption, value),
        ),
        (
            "aclrtBinaryLoadOptions",
            "numOpt",
            size_of::<sys::BinaryLoadOptions>(),
            std::mem::offset_of!(sys::BinaryLoadOptions, count),
        ),
        (
            "aclrtLaunchKernelAttr",
            "value",
            size_of::<sys::LaunchKernelAttr>(),
            std::mem::offset_of!(sys::LaunchKernelAttr, value),
        ),
        (
            "aclrtLaunchKernelCfg",
            "numAttrs",
            size_of::<sys::LaunchKernelCfg>(),
            std::mem::offset_of!(sys::LaunchKernelCfg, count),
        ),
    ];
    for (name, field, size, offset) in layouts {
        text +=
            &format!("static_assert(sizeof({name}) == {size} && offsetof({name}, {field}) == {offset}, \"{name}\");\n");
    }
    text
}

#[test]
fn declarations_agree_with_the_vendors_headers() {
    if std::env::var_os("SLOW").is_none() && !Settings::from_env().dir.join("acl-headers").is_dir() {
        println!("skipped: SLOW=1 fetches the headers (a wheel of 44 MB), after which this always runs");
        return;
    }
    let settings = Settings::from_env();
    let inc = match headers(&settings) {
        Ok(inc) => inc,
        Err(why) if settings.ci => panic!("the headers could not be fetched: {why}"),
        Err(why) => {
            println!("skipped: the headers could not be fetched: {why}");
            return;
        }
    };
    let dir = tempfile::tempdir().expect("a folder");
    let check = |text: &str| {
        let path = dir.path().join("check.cpp");
        std::fs::write(&path, text).expect("a file");
        let output = Command::new(&settings.cxx)
            .args(["-std=c++17", "-fsyntax-only", "-isystem"])
            .arg(&inc)
            .arg(&path)
            .output()
            .expect("a compiler");
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let text = comparison();
    let (agree, log) = check(&text);
    assert!(agree, "{log}");
    // The comparison can fail.
    for (from, to) in [
        ("static_assert(ACL_HBM_MEM == 1", "static_assert(ACL_HBM_MEM == 2"),
        (
            "aclrtMemcpy_shape[] = {{4, false}, {8, true}, {8, false}",
            "aclrtMemcpy_shape[] = {{4, false}, {8, true}, {4, false}",
        ),
        ("sizeof(aclrtLaunchKernelAttr) == 20", "sizeof(aclrtLaunchKernelAttr) == 24"),
    ] {
        assert!(text.contains(from), "{from}");
        assert!(!check(&text.replacen(from, to, 1)).0, "{from} -> {to}");
    }
}
