//! The simulated device as a device: it runs launches, and names what it cannot simulate.

use crate::scale::Scale;
use kiln_codegen::abi::Launcher;
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::DType;
use kiln_codegen::target::Target;

#[test]
fn runs_a_launch() {
    for (name, target) in [("sim:sm_80", Target::Sm80), ("sim:sm_90a", Target::Sm90a)] {
        let device = kiln_runtime::open(name).expect("always there");
        assert_eq!((device.name(), device.target()), (name, target));
        runs_one(&device);
    }
}

fn runs_one(device: &kiln_runtime::Device) {
    let x = HostTensor::from_f64(DType::F32, &[1000], &(0..1000).map(f64::from).collect::<Vec<_>>());
    let x = device.upload(&x).expect("fits");
    let y = device.zeros(DType::F32, &[1000]).expect("fits");
    let stream = device.stream().expect("opens");
    stream.launch(&Scale::launch(x, y.clone(), 0.5)).unwrap_or_else(|e| panic!("{e}"));
    stream.synchronize().expect("it has run");
    let got = device.download(&y).expect("in host memory").to_f64();
    assert!(got.iter().enumerate().all(|(i, &v)| v == i as f64 * 0.5));
}

#[test]
fn other_targets_are_named() {
    let e = kiln_runtime::open("sim:sm_100a").expect_err("not yet");
    assert!(e.to_string().contains("expected sim:sm_80, sim:sm_90a, sim:ascend910b or sim:ascend950"), "{e}");
    assert_eq!(e.exit_code(), 2);
}
