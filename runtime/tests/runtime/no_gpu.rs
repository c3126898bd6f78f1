//! Machines without a driver, with a driver but without a GPU, and with a stand-in for a GPU that prints what it is asked
//! to do. Errors, never panics. The driver is looked up once a process, so each case runs in a child process of its own.

use crate::scale::Scale;
use kiln_codegen::abi::{Arg, Launcher, Plan};
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::DType;
use kiln_runtime::Error;
use kiln_runtime::measure::{MeasureOptions, time};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Run by the tests below in a child process; prints what opening a GPU gives.
#[test]
#[ignore = "the other tests of this file run it in a child process"]
fn child() {
    match kiln_runtime::open("cuda:0") {
        Ok(d) => println!("opened {}", d.info().model),
        Err(e) => println!("exit {}: {e}", e.exit_code()),
    }
    let best = kiln_runtime::open("best").expect("falls back to cpu");
    println!("best is {}", best.name());
}

/// Memory of a GPU, as far as no kernel is needed; run in a child process.
#[test]
#[ignore = "`a_stand_in_moves_tensors` runs it in a child process"]
fn memory_child() {
    let gpu = kiln_runtime::open("cuda:0").expect("the stand-in is there");
    let info = gpu.info();
    println!("{} {} {} {} {}", info.model, info.target.name(), info.arch, info.units, info.driver);
    let t = HostTensor::from_f64(DType::F32, &[5], &[1.0, 2.0, 3.0, 4.0, 5.0]);
    let view = gpu.upload(&t).expect("fits");
    assert_eq!(view.memory.address() % 256, 0);
    assert_eq!(gpu.download(&view).expect("comes back"), t);
    assert!(gpu.zeros(DType::F32, &[0]).is_ok(), "an empty tensor is fine");
    println!("{}", gpu.alloc(1 << 40).expect_err("too much"));
    println!("{}", kiln_runtime::open("cuda:3").expect_err("one device"));
    let cpu = kiln_runtime::open("cpu").expect("always there");
    let foreign = cpu.upload(&t).expect("fits");
    println!("{}", gpu.download(&foreign).expect_err("another device"));
}

/// Launches on the stand-in; run in child processes.
#[test]
#[ignore = "`a_stand_in_launches` and `a_fault_names_the_kernel` run it in child processes"]
fn launch_child() {
    let gpu = kiln_runtime::open("cuda:0").expect("the stand-in is there");
    let stream = gpu.stream().expect("opens");
    let tensor = || gpu.zeros(DType::F32, &[1000]).expect("fits");
    let (x, y) = (tensor(), tensor());
    println!("expected {:x} {:x} 40000000 3e4", x.memory.address(), y.memory.address() + 16);
    let mut launch = Scale::launch(x, y, 2.0);
    // Views of 996 elements, one of which does not start at its allocation's first byte.
    if let Arg::Tensor(x) = &mut launch.args[0] {
        x.shape = vec![996];
    }
    if let Arg::Tensor(y) = &mut launch.args[1] {
        (y.shape, y.offset_bytes) = (vec![996], 16);
    }
    let empty = || gpu.zeros(DType::F32, &[0]).expect("fits");
    stream.launch(&Scale::launch(empty(), empty(), 2.0)).expect("an empty grid is no launch");
    match stream.launch(&launch) {
        Err(e @ (Error::NoCompiler { .. } | Error::Refused { .. })) => return println!("skip: {e}"),
        other => other.expect("launches"),
    }
    for _ in 0..2 {
        if let Err(e) = stream.synchronize() {
            println!("exit {}: {e}", e.exit_code());
        }
    }
    if let Err(e) = stream.launch(&launch) {
        return println!("later: {e}");
    }
    let plan = || Plan { steps: vec![Scale::launch(tensor(), tensor(), 2.0)], workspaces: vec![100] };
    let m = time(&gpu, &[plan(), plan(), plan()], &MeasureOptions::default()).expect("measures");
    println!("{} calls over {} sets by {}: {:.3} us", m.calls, m.sets, m.timer, m.median_us);
}

/// Output of a child with a library path and variables.
fn run_child(child: &str, libraries: &Path, variables: &[(&str, &str)]) -> String {
    let me = std::env::current_exe().expect("a running test has a path");
    let out = Command::new(me)
        .args(["--ignored", "--exact", &format!("no_gpu::{child}"), "--nocapture"])
        .env("LD_LIBRARY_PATH", libraries)
        .envs(variables.iter().copied())
        .output()
        .expect("the child starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(out.status.success(), "{}\n{}", text(&out.stdout), text(&out.stderr));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

fn run(libraries: &Path) -> String {
    run_child("child", libraries, &[])
}

/// Builds a driver from C; `None` without a C compiler.
fn driver(dir: &Path, text: &str) -> Option<PathBuf> {
    let source = dir.join("cuda.c");
    std::fs::write(&source, text).expect("writable");
    let library = dir.join("libcuda.so.1");
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status();
    if !built.is_ok_and(|s| s.success()) {
        assert!(std::env::var_os("CI").is_none(), "`cc` is needed in CI");
        println!("skip: no C compiler (`cc`) to build the stand-in driver");
        return None;
    }
    // Names without a version are tried first; a real driver must not be found before the stand-in.
    std::fs::copy(&library, dir.join("libcuda.so")).expect("writable");
    Some(dir.to_path_buf())
}

const STAND_IN: &str = include_str!("stand_in.c");

#[test]
fn a_stand_in_moves_tensors() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let Some(libraries) = driver(dir.path(), STAND_IN) else { return };
    let text = run_child("memory_child", &libraries, &[]);
    for line in [
        "Stand-in sm_90a sm_90a 132 13.0",
        "cuda:0: cannot allocate 1099511627776 bytes (12345 bytes are free); use a smaller problem or drop tensors",
        "no device is called `cuda:3`; expected best, cpu, null, sim:sm_80, sim:sm_90a, sim:ascend910b, sim:ascend950, cuda:N or ascend:N (found here: cuda:0, cpu)",
        "download of f32 [5]: expected memory on cuda:0, got memory on cpu",
        "live 0",
    ] {
        assert!(text.contains(line), "no `{line}` in:\n{text}");
    }
}

#[test]
fn an_old_driver_is_refused() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let Some(libraries) = driver(dir.path(), STAND_IN) else { return };
    let text = run_child("child", &libraries, &[("OLD", "1")]);
    assert!(text.contains("exit 3: cuda:0: the NVIDIA driver is installed but no usable GPU"), "{text}");
    assert!(text.contains("the driver is for CUDA 12.4; 13.0 (driver 580) or newer is needed"), "{text}");
    assert!(text.contains("best is cpu"), "{text}");
}

#[test]
fn a_stand_in_launches() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let Some(libraries) = driver(dir.path(), STAND_IN) else { return };
    let text = run_child("launch_child", &libraries, &[]);
    if let Some(why) = text.lines().find(|l| l.starts_with("skip: ")) {
        return println!("{why}");
    }
    assert!(text.contains("launch grid 4 1 1 threads 128 1 1 shared "), "{text}");
    let expected = text.lines().find_map(|l| l.split_once("expected ")).expect("the child prints it").1;
    assert!(text.contains(&format!("arguments {expected}\n")), "{text}");
    assert_eq!(text.matches("launch grid").count(), 2 + 1 + 3, "two, one to warm, three to estimate:\n{text}");
    // 6000 us between the events around three calls: three calls fill a replay, and a graph holds them.
    assert_eq!(text.matches("graph of 3").count(), 1 + 7, "{text}");
    assert!(text.contains("3 calls over 3 sets by graph: 2000.000 us"), "{text}");
    assert!(!text.contains("freed while capturing"), "{text}");
}

#[test]
fn a_fault_names_the_kernel() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let Some(libraries) = driver(dir.path(), STAND_IN) else { return };
    let text = run_child("launch_child", &libraries, &[("FAULT", "1")]);
    if let Some(why) = text.lines().find(|l| l.starts_with("skip: ")) {
        return println!("{why}");
    }
    let fault = "cuda:0: kernel `scale` caused a device fault (CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was \
                 encountered)";
    assert_eq!(text.matches(&format!("exit 1: {fault}")).count(), 2, "sticky:\n{text}");
    assert!(text.contains(&format!("later: {fault}")), "{text}");
}

#[test]
fn without_a_driver() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let text = run(dir.path());
    if text.contains("opened ") {
        println!("skip: this machine has a GPU");
        return;
    }
    if text.contains("the NVIDIA driver is installed but") {
        println!("skip: this machine has a driver");
        return;
    }
    assert!(
        text.contains(
            "exit 3: cuda:0: no NVIDIA driver on this machine (libcuda.so.1 could not be loaded); kernels can be \
             compiled but not run there"
        ),
        "{text}"
    );
    assert!(text.contains("best is cpu"), "{text}");
}

/// A driver whose `cuInit` says that there is no device.
const NO_DEVICE: &str = r#"
int cuInit(unsigned flags) { (void)flags; return 100; }
int cuDriverGetVersion(int *v) { *v = 13000; return 0; }
int cuGetErrorName(int e, const char **s) { (void)e; *s = "CUDA_ERROR_NO_DEVICE"; return 0; }
int cuGetErrorString(int e, const char **s) { (void)e; *s = "no CUDA-capable device is detected"; return 0; }
"#;

#[test]
fn with_a_driver_but_no_gpu() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let Some(libraries) = driver(dir.path(), NO_DEVICE) else { return };
    let text = run(&libraries);
    assert!(
        text.contains(
            "exit 3: cuda:0: the NVIDIA driver is installed but no usable GPU was found (CUDA_ERROR_NO_DEVICE: no \
             CUDA-capable device is detected); use the device `cpu`"
        ),
        "{text}"
    );
    assert!(text.contains("best is cpu"), "{text}");
}
