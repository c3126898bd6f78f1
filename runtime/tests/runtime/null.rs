//! The null device: launches, plans and workspaces as everything above devices sees them.

use crate::scale::Scale;
use kiln_codegen::abi::{Arg, Launcher, Plan};
use kiln_codegen::ir::{DType, Literal};
use kiln_runtime::Error;

#[test]
fn records_launches_with_dimensions_and_grid() {
    let device = kiln_runtime::open("null").expect("always there");
    let stream = device.stream().expect("opens");
    let (x, y) = (device.zeros(DType::F32, &[1000]).expect("fits"), device.zeros(DType::F32, &[1000]).expect("fits"));
    stream.launch(&Scale::launch(x, y, 2.0)).expect("accepted");
    let seen = device.recorded();
    assert_eq!(seen.len(), 1);
    assert_eq!((seen[0].kernel.as_str(), seen[0].dims["n"], seen[0].grid.as_slice()), ("scale", 1000, &[4][..]));
    assert_eq!(seen[0].config.to_string(), "block=256");
    assert_eq!(seen[0].request.facts[0].align_bytes, 16);
}

#[test]
fn plans_share_workspaces_in_order() {
    let device = kiln_runtime::open("null").expect("always there");
    let stream = device.stream().expect("opens");
    let (x, y) = (device.zeros(DType::F32, &[64]).expect("fits"), device.zeros(DType::F32, &[64]).expect("fits"));
    let scratch = || Arg::Workspace { index: 0, dtype: DType::F32, shape: vec![64], offset_bytes: 0 };
    let mut first = Scale::launch(x, y.clone(), 2.0);
    first.args[1] = scratch();
    let mut second = Scale::launch(y.clone(), y, 3.0);
    second.args[0] = scratch();
    let mut plan = Plan { steps: vec![first, second], workspaces: vec![256] };
    stream.run(&plan).expect("accepted");
    assert_eq!(device.recorded().len(), 2);

    plan.workspaces = vec![128];
    let e = stream.run(&plan).expect_err("the view is larger than declared");
    assert_eq!(
        e.to_string(),
        "plan step 0 (`scale`): expected workspace 0 of 128 bytes, got a view up to byte 256; the operator's `plan` has \
         to declare it"
    );
    plan.workspaces = vec![];
    assert!(matches!(stream.run(&plan), Err(Error::Plan { step: 0, .. })));
}

#[test]
fn launches_of_other_devices_are_refused() {
    let (null, cpu) = (kiln_runtime::open("null").expect("there"), kiln_runtime::open("cpu").expect("there"));
    let (x, y) = (cpu.zeros(DType::F32, &[8]).expect("fits"), cpu.zeros(DType::F32, &[8]).expect("fits"));
    let e = null.stream().expect("opens").launch(&Scale::launch(x, y, 1.0)).expect_err("tensors are on cpu");
    assert_eq!(
        e.to_string(),
        "cannot launch `scale`: parameter `x`: expected a tensor on null, the stream's device, got one on cpu; upload it \
         to this device, or launch on a stream of the other"
    );
    assert_eq!(e.exit_code(), 1);
}

#[test]
fn mistakes_reach_the_caller() {
    let device = kiln_runtime::open("null").expect("always there");
    let (x, y) = (device.zeros(DType::F32, &[8]).expect("fits"), device.zeros(DType::F32, &[9]).expect("fits"));
    let mut launch = Scale::launch(x, y, 1.0);
    let stream = device.stream().expect("opens");
    let text = stream.launch(&launch).expect_err("sizes differ").to_string();
    assert!(text.contains("parameter `y`: expected axis 0 of extent `n` = 8, got 9"), "{text}");
    launch.args[2] = Arg::Scalar(Literal::i32(1));
    let text = stream.launch(&launch).expect_err("an integer").to_string();
    assert!(text.contains("parameter `a`: expected f32, got i32"), "{text}");
    assert!(device.recorded().is_empty());
}

#[test]
fn unknown_names_list_what_is_here() {
    let e = kiln_runtime::open("tpu").expect_err("no such device");
    assert!(
        e.to_string()
            .starts_with("no device is called `tpu`; expected best, cpu, null, sim:sm_80, sim:sm_90a, sim:ascend910b, sim:ascend950, cuda:N or ascend:N"),
        "{e}"
    );
    assert_eq!(e.exit_code(), 2);
}
