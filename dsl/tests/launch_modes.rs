//! What a kernel asks of its launch, and what it states about its data: `cooperative` with `grid_sync`, `pdl`, `check!`.

#[path = "common/run.rs"]
#[allow(dead_code, reason = "every test crate uses another part")]
mod run;

use dsl::prelude::*;
use kiln_codegen::diag::Diagnostic;
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::DType as Data;
use kiln_codegen::spec::{BuildRequest, KernelDef, ParamFacts};
use kiln_codegen::target::Target;
use kiln_codegen::tune::Config;
use run::{Given, emitted, failure, noise, run};

/// All blocks write their sums, meet, and each divides its part by the total.
#[kernel(cooperative, deterministic)]
fn normalise(x: In![F32; n], sums: InOut![F32; blocks], y: Out![F32; n]) {
    let b = grid(blocks);
    let own = shared::<F32, 1>([64]);
    copy(x.at(b * 64), own);
    let sum = reduce_sum(own, 0);
    sums[b] = sum;
    grid_sync();
    let mut total = 0.0f32;
    for i in 0..blocks {
        total += sums[i];
    }
    for i in parallel([64]) {
        y[b * 64 + i] = own[i] / total;
    }
}

#[test]
fn blocks_of_a_cooperative_grid_see_what_all_wrote_before_the_barrier() {
    let n = 300;
    let values: Vec<f64> = (0..n).map(|i| f64::from(1 + i as u8 % 7)).collect();
    let x = HostTensor::from_f64(Data::F32, &[n], &values);
    let args: [Given; 3] =
        [(&x).into(), HostTensor::zeros(Data::F32, &[5]).into(), HostTensor::zeros(Data::F32, &[n]).into()];
    let y = run(&*normalise::kernel(), &Config::default(), &args).remove(2);
    // Small integers: every order of the sum is exact.
    let total: f64 = values.iter().sum();
    for (got, v) in y.iter().zip(&values) {
        assert_eq!(*got, f64::from(*v as f32 / total as f32));
    }
    let text = emitted(&*normalise::kernel(), &Config::default(), &args, Target::Sm80);
    assert!(text.contains("grid_sync(grid_arrivals);") && text.contains("u32* __restrict__ grid_arrivals"), "{text}");
}

#[kernel(pdl)]
fn twice(x: In![F32; n], y: Out![F32; n]) {
    let b = grid(n.div_ceil(64)) * 64;
    for i in parallel([64]) {
        y[b + i] = x[b + i] * 2.0;
    }
}

#[test]
fn a_dependent_launch_waits_before_it_touches_memory() {
    let x = noise(Data::F32, &[100], 1);
    let args: [Given; 2] = [(&x).into(), HostTensor::zeros(Data::F32, &[100]).into()];
    let y = run(&*twice::kernel(), &Config::default(), &args).remove(1);
    assert!(y.iter().zip(x.to_f64()).all(|(y, x)| *y == 2.0 * x));
    for target in [Target::Sm90a, Target::Sm100a] {
        let text = emitted(&*twice::kernel(), &Config::default(), &args, target);
        let body = text.split_once("__global__").expect("a kernel").1;
        let wait = body.find("wait_for_earlier_kernels();").expect("it waits");
        assert!(body.find("x[").is_none_or(|read| wait < read) && wait < body.find("for (").unwrap_or(usize::MAX));
        assert!(text.contains("griddepcontrol.wait;") && text.contains("griddepcontrol.launch_dependents;"));
    }
    let text = emitted(&*twice::kernel(), &Config::default(), &args, Target::Sm80);
    assert!(!text.contains("griddepcontrol") && !text.contains("wait_for_earlier_kernels"));
}

#[kernel(dims(h: fixed))]
fn checked(w: In![F32; h], x: In![F32; n], y: Out![F32; n]) {
    check!(h % 4 == 0, "rows are whole vectors");
    let b = grid(n.div_ceil(64)) * 64;
    check!(n > 0, "there are elements");
    for i in parallel([64]) {
        if b + i < n {
            check!(x[b + i] >= 0.0, "x has no negative element");
        }
        y[b + i] = sqrt(x[b + i]) * w[0];
    }
}

#[test]
fn a_check_names_what_does_not_hold() {
    let def = checked::kernel();
    let fixed = |h: usize| BuildRequest {
        fixed: [("h".to_string(), h)].into(),
        facts: [(); 3].map(|()| ParamFacts { present: true, align_bytes: 16, ..ParamFacts::default() }).to_vec(),
        ..BuildRequest::default()
    };
    let found = def.build(&fixed(6)).expect_err("6 is no multiple of 4");
    assert!(found[0].code == "B0110" && found[0].message.contains("rows are whole vectors"), "{found:?}");
    let good = run_checked(4, &[0.0, 1.0, 4.0]).expect("it holds");
    assert_eq!(good, [0.0, 1.0, 2.0]);
    let text = run_checked(4, &[0.0, -1.0, 4.0]).expect_err("an element is negative");
    assert!(text.contains("S0111") && text.contains("x has no negative element"), "{text}");
}

/// Runs `checked` on values.
fn run_checked(h: usize, values: &[f64]) -> Result<Vec<f64>, String> {
    let x = HostTensor::from_f64(Data::F32, &[values.len()], values);
    let w = HostTensor::from_f64(Data::F32, &[h], &vec![1.0; h]);
    let args: [Given; 3] = [w.into(), x.into(), HostTensor::zeros(Data::F32, &[values.len()]).into()];
    failure(&*checked::kernel(), &args)
}

#[kernel]
fn alone(x: InOut![F32; n]) {
    let b = grid(n);
    x[b] = 1.0;
    grid_sync();
}

#[kernel(cooperative)]
fn sometimes(x: InOut![F32; n]) {
    let b = grid(n);
    for _ in 0..3 {
        grid_sync();
        x[b] = 1.0;
    }
}

fn refusal(def: &dyn KernelDef) -> Diagnostic {
    let facts = vec![ParamFacts { present: true, align_bytes: 16, ..ParamFacts::default() }];
    let kernel = def.build(&BuildRequest { facts, ..BuildRequest::default() }).expect("it builds");
    kiln_codegen::valid::check(&kernel).expect_err("it is refused").remove(0)
}

#[test]
fn grid_barriers_stand_where_every_block_passes_and_waits() {
    let d = refusal(&*alone::kernel());
    assert!(d.code == "V0111" && d.to_string().contains("#[kernel(cooperative"), "{d}");
    let d = refusal(&*sometimes::kernel());
    assert!(d.code == "V0110" && d.to_string().contains("top level"), "{d}");
}
