//! What the model chooses where nobody measured, and what operators ask a config for. Searching is tested in `runtime`;
//! the commands, and the records that come with Kiln, in `tests/cli.rs`.

use kiln_codegen::ir::DType;
use kiln_codegen::spec::{Configs, KernelDef, OpSpec, Problem, TensorSpec};
use kiln_codegen::target::Target;
use kiln_codegen::tune::{Config, ConfigValue};
use kiln_runtime::tune::model::{Modelled, arguments, screen};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

fn operator(name: &str) -> Arc<dyn OpSpec> {
    kiln_kernels::registry().into_iter().find(|o| o.info().name == name).unwrap_or_else(|| panic!("no {name}"))
}

/// `gemm_fp8` of e4m3 with scales in f32, bf16 out, and the dimensions of a product.
fn product([m, n, k]: [usize; 3]) -> (Arc<dyn KernelDef>, BTreeMap<String, usize>) {
    let types = BTreeMap::from([("B", DType::E4m3), ("O", DType::Bf16)]);
    let fits = |kernel: &Arc<dyn KernelDef>| {
        let info = kernel.info();
        info.name == "gemm_fp8" && info.dtypes.iter().all(|(name, d)| types.get(name.as_str()) == Some(d))
    };
    let kernel = operator("gemm_fp8").kernels().into_iter().find(fits).expect("one of them");
    let blocks = k.div_ceil(128);
    let given = [("m", m), ("n", n), ("k", k), ("ka", blocks), ("kb", blocks), ("nb", n.div_ceil(128))];
    let mut dims: BTreeMap<String, usize> = kernel.info().dims.iter().map(|d| (d.name.clone(), 0)).collect();
    dims.extend(given.map(|(name, x)| (name.to_string(), x)));
    (kernel, dims)
}

#[test]
fn the_model_chooses_the_tile_that_is_measured_fastest() {
    let (kernel, dims) = product([4096, 4096, 7168]);
    let model = Modelled::new(Target::Sm90a).expect("a chip");
    let chosen = model.choose(kernel.as_ref(), &dims);
    // On an H200: 168 us with these, 466 us with the default.
    assert_eq!((&chosen.0["bm"], &chosen.0["bn"]), (&ConfigValue::Int(256), &ConfigValue::Int(128)), "{chosen}");
    let default = kernel.space().default_config();
    assert_eq!(chosen.0["few_rows"], default.0["few_rows"], "a field that changes rounding");
    // Sizes nearby share the choice.
    let (_, near) = product([4090, 4096, 7168]);
    assert_eq!(model.choose(kernel.as_ref(), &near), chosen);

    // The way down misses nothing that one or two fields away from it would show.
    let args = arguments(kernel.as_ref(), &dims).expect("all dimensions are known");
    let us = |c: &Config| screen(kernel.as_ref(), c, &args, Target::Sm90a).us();
    let of = |c: &Config, name: &str| c.0[name].clone();
    let rest = ["panel", "cluster", "share_a", "unroll", "few_rows"];
    let best = kernel.space().all().into_iter().filter(|c| rest.iter().all(|n| of(c, n) == of(&chosen, n)));
    let best = best.map(|c| us(&c)).fold(f64::INFINITY, f64::min);
    assert!(us(&chosen) <= best * 1.001, "{} us, and {best} us is there", us(&chosen));
}

#[test]
fn optional_tensors_are_there_if_only_they_have_a_dimension() {
    let (kernel, dims) = product([256, 512, 1024]);
    let args = arguments(kernel.as_ref(), &dims).expect("all dimensions are known");
    let absent: Vec<&str> = kernel
        .info()
        .params
        .iter()
        .zip(&args)
        .filter(|(_, a)| matches!(a, kiln_codegen::abi::Arg::Absent))
        .map(|(p, _)| p.name.as_str())
        .collect();
    assert_eq!(absent, ["sa_packed", "sb_packed", "c"]);
}

/// Notes what each kernel is asked for.
#[derive(Debug, Default)]
struct Asked(Mutex<Vec<(String, Vec<String>)>>);

impl Configs for Asked {
    fn choose(&self, kernel: &dyn KernelDef, dims: &BTreeMap<String, usize>) -> Config {
        let names = dims.keys().cloned().collect();
        self.0.lock().expect("no panic").push((kernel.info().name.clone(), names));
        kernel.space().default_config()
    }
}

/// Without all dimensions the model cannot make a launch up, and says nothing.
#[test]
fn products_ask_with_all_dimensions() {
    let cpu = kiln_runtime::open("cpu").expect("always there");
    for name in ["gemm_fp8", "gemm_bf16", "gemm_m_grouped_contiguous", "gemm_m_grouped_masked"] {
        let op = operator(name);
        let case = op.cases().into_iter().next().expect("has cases");
        let inputs: BTreeMap<String, TensorSpec> =
            case.inputs.iter().map(|i| (i.tensor.name.clone(), i.tensor.clone())).collect();
        let outputs = op.outputs(&inputs, &case.params).expect("a valid case");
        let all = inputs.into_values().chain(outputs);
        let tensors = all.map(|t| (t.name.clone(), cpu.zeros(t.dtype, &t.shape).expect("fits"))).collect();
        let asked = Asked::default();
        op.plan(&Problem { tensors, params: case.params.clone() }, &asked).expect("plans");
        let asked = asked.0.into_inner().expect("no panic");
        let (_, names) = asked.iter().find(|(kernel, _)| kernel == name).unwrap_or_else(|| panic!("{asked:?}"));
        let kernel = op.kernels().into_iter().find(|k| k.info().name == name).expect("its kernel");
        for dim in &kernel.info().dims {
            assert!(names.contains(&dim.name), "{name} is asked for without `{}`: {names:?}", dim.name);
        }
    }
}
