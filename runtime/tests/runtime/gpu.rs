//! On a real GPU: results against the CPU device, timing by graphs, memory that is dropped while kernels run. Machines
//! without one print why they skip.

use crate::scale::Scale;
use kiln_codegen::abi::{Launcher, Plan};
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::DType;
use kiln_runtime::Device;
use kiln_runtime::measure::{MeasureOptions, sets_for, time};

fn gpu() -> Option<Device> {
    match kiln_runtime::open("cuda:0") {
        Ok(d) => Some(d),
        Err(e) => {
            println!("skip: {e}");
            None
        }
    }
}

fn numbers(n: usize) -> HostTensor {
    let values: Vec<f64> = (0..n).map(|i| (i % 1001) as f64 / 7.0).collect();
    HostTensor::from_f64(DType::F32, &[n], &values)
}

/// `2.5 · x` on a device.
fn scaled(device: &Device, x: &HostTensor) -> HostTensor {
    let y = device.zeros(DType::F32, &x.shape).expect("fits");
    let launch = Scale::launch(device.upload(x).expect("fits"), y.clone(), 2.5);
    device.stream().expect("opens").launch(&launch).expect("launches");
    device.download(&y).expect("comes back")
}

#[test]
fn equals_the_cpu() {
    let Some(gpu) = gpu() else { return };
    let cpu = kiln_runtime::open("cpu").expect("always there");
    for n in [0, 1, 255, 256, 257, 100_003] {
        let x = numbers(n);
        assert_eq!(scaled(&gpu, &x), scaled(&cpu, &x), "{n} elements");
    }
}

#[test]
fn tensors_may_be_dropped_while_kernels_run() {
    let Some(gpu) = gpu() else { return };
    let stream = gpu.stream().expect("opens");
    let x = numbers(1 << 20);
    for _ in 0..20 {
        let y = gpu.zeros(DType::F32, &x.shape).expect("fits");
        stream.launch(&Scale::launch(gpu.upload(&x).expect("fits"), y, 2.0)).expect("launches");
    }
    stream.synchronize().expect("no fault");
}

#[test]
fn memory_bound_work_is_timed_plausibly() {
    let Some(gpu) = gpu() else { return };
    let n = 16 << 20;
    let bytes = 8 * n;
    let tensor = || gpu.zeros(DType::F32, &[n]).expect("fits");
    let plan = || Plan { steps: vec![Scale::launch(tensor(), tensor(), 2.0)], workspaces: vec![] };
    let plans: Vec<_> = (0..sets_for(bytes)).map(|_| plan()).collect();
    let m = time(&gpu, &plans, &MeasureOptions::default()).expect("measures");
    let gbps = bytes as f64 / m.median_us / 1e3;
    println!("{}: {:.1} us, {gbps:.0} GB/s, {} calls over {} sets", gpu.info().model, m.median_us, m.calls, m.sets);
    // No card moves more than this from memory; a broken timer or a cached input would.
    assert!(m.timer == "graph" && gbps < 9000.0, "{m:?}");
    assert!(m.min_us <= m.median_us && m.median_us <= m.p95_us, "{m:?}");
}
