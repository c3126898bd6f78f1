//! Dense decoding by roles, the form of `mla_decode_dense` for chips whose warp groups have matrix units: it is right in
//! every order of roles and engines and on the simulated chip, keeps off memory that nobody wrote, and breaks under
//! mutations that somebody notices. How forms are attached and refused in general is tested beside the language.

#![allow(clippy::print_stdout, reason = "what ran, and what it cost, is named in the test's output")]

#[path = "golden/cases.rs"]
#[allow(dead_code, reason = "the golden tests use the rest")]
mod cases;
#[path = "golden/device.rs"]
#[allow(dead_code, reason = "the golden tests use the rest")]
mod device;
#[path = "golden/vm.rs"]
#[allow(dead_code, reason = "the golden tests use the rest")]
mod tile_vm;

use device::{Placed, bound, outputs, place, simulator};
use kiln_codegen::abi::Arg;
use kiln_codegen::compile::{self, Built};
use kiln_codegen::host_memory::HostMemory;
use kiln_codegen::ir::{Kernel, parse, print};
use kiln_codegen::spec::{Configs, Fill, HostProblem, KernelDef, OpSpec, Params};
use kiln_codegen::target::Target;
use kiln_codegen::tune::{Config, ConfigValue};
use kiln_codegen::vm::roles::{self, Schedule};
use kiln_codegen::{bind, valid};
use kiln_kernels::numeric::{Comparison, Tensors, judge};
use kiln_runtime::tune::Modelled;
use kiln_runtime::{Device, Settings, open_with};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// The default with another number of keys a split.
#[derive(Debug)]
struct Split(usize);
impl Configs for Split {
    fn choose(&self, kernel: &dyn KernelDef, _: &BTreeMap<String, usize>) -> Config {
        let mut config = kernel.space().default_config();
        if let Some(field) = config.0.get_mut("split_tokens") {
            *field = ConfigValue::Int(self.0);
        }
        config
    }
}

fn op() -> Arc<dyn OpSpec> {
    kiln_kernels::registry().into_iter().find(|op| op.info().name == "mla_decode_dense").expect("the operator")
}

/// Lengths of requests, queries, heads, widths of keys and of values, keys of a split.
type Problem = (&'static [usize], usize, usize, [usize; 2], usize);

const PROBLEMS: [Problem; 4] = [
    // Tails, a whole tile, one key, none; rows past the last head.
    (&[150, 64, 1, 0], 2, 24, [192, 128], 2048),
    // Splits, of which the last of a request is short or empty.
    (&[300, 257, 256, 3], 1, 64, [128, 128], 256),
    // Two blocks of rows of a request.
    (&[200], 3, 40, [192, 128], 2048),
    // Values in two instructions beside each other.
    (&[70], 1, 40, [576, 512], 2048),
];

/// The inputs, with a cache that is NaN wherever no key of a request lies.
fn inputs(op: &dyn OpSpec, (lens, queries, heads, [dk, dv], _): Problem) -> (Tensors, Params) {
    let longest = lens.iter().copied().max().unwrap_or(0).next_multiple_of(64);
    let sizes =
        [("b", lens.len()), ("s_q", queries), ("s_k", longest), ("h_q", heads), ("d", dk), ("dv", dv), ("page", 64)];
    let mut case = op.bench_case(&sizes.map(|(k, x)| (k.to_string(), x))).unwrap_or_else(|e| panic!("{e}"));
    for input in case.inputs.iter_mut().filter(|i| i.tensor.name == "cache_seqlens") {
        input.fill = Fill::Values(lens.iter().map(|&l| l as f64).collect());
    }
    let mut inputs = tile_vm::fill(&case);
    let cache = &mut inputs.get_mut("k_cache").expect("a cache").data;
    for (b, len) in lens.iter().enumerate() {
        cache[(b * longest + len) * dk * 2..(b + 1) * longest * dk * 2].fill(0xff);
    }
    (inputs, case.params)
}

/// The first launch with its form.
fn form(device: &Device, placed: &Placed) -> (Built, Kernel, Vec<i64>, Vec<Arg>) {
    let step = placed.plan.steps.first().expect("a launch");
    let bound = bound(device, step).unwrap_or_else(|e| panic!("{e}"));
    let built = compile::build(step.kernel.as_ref(), &bound.request).unwrap_or_else(|e| panic!("{e:?}"));
    let form = built.forms.get(&Target::Sm90a).expect("whole pieces have the form");
    assert!(form.is_ok(), "{:?}", form.as_ref().err());
    let (_, kernel, _) = compile::scheduled(&built, Target::Sm90a).unwrap_or_else(|e| panic!("{e}"));
    let syms = bind::sym_values(&kernel, &bound.dims, &step.args);
    (built, kernel, syms, step.args.clone())
}

fn right(name: &str) {
    let Some(device) = (match name.starts_with("sim") {
        true => simulator(name),
        false => Some(open_with(name, &Settings::from_env()).expect("it is everywhere")),
    }) else {
        return;
    };
    let op = op();
    for problem in PROBLEMS {
        let start = Instant::now();
        let (inputs, params) = inputs(op.as_ref(), problem);
        let placed = place(&device, op.as_ref(), &inputs, &params, &Split(problem.4)).unwrap_or_else(|e| panic!("{e}"));
        form(&device, &placed);
        let got = outputs(&device, &placed).unwrap_or_else(|e| panic!("{problem:?}: {e}"));
        let host = HostProblem { tensors: inputs.clone(), params: params.clone() };
        let mut all = inputs.clone();
        all.extend(op.reference(&host).unwrap_or_else(|e| panic!("{e}")));
        for output in ["out", "lse"] {
            let metric = op.tolerance(output, &params).into();
            let v = judge(output, &metric, &Comparison { case: &all, got: &got, params: &params });
            assert!(v.ok, "{problem:?}: {output}: {} {:.3e}: {}", v.metric, v.value, v.reason);
        }
        println!("{:>6} ms {problem:?}", start.elapsed().as_millis());
    }
}

/// The interpreter compares, in several orders of roles and engines, the bits of the placed kernel with those of the
/// kernel as it is written.
#[test]
fn dense_decode_by_roles_is_right_in_every_order() {
    right("vm:sm_90a");
}

#[test]
fn dense_decode_by_roles_is_right_on_the_simulated_chip() {
    right("sim:sm_90a");
}

/// Where its pieces do not fit, and on other chips, the kernel is what it was.
#[test]
fn other_widths_and_chips_have_the_portable_form() {
    let device = open_with("cpu", &Settings::from_env()).expect("it is everywhere");
    let op = op();
    let (inputs, params) = inputs(op.as_ref(), (&[70], 1, 40, [160, 128], 2048));
    let placed = place(&device, op.as_ref(), &inputs, &params, &Split(2048)).unwrap_or_else(|e| panic!("{e}"));
    let step = &placed.plan.steps[0];
    let request = bound(&device, step).unwrap_or_else(|e| panic!("{e}")).request;
    let built = compile::build(step.kernel.as_ref(), &request).unwrap_or_else(|e| panic!("{e:?}"));
    assert!(built.forms.is_empty() && built.on(Target::Sm90a).kernel.roles.is_empty());
    let lowered = compile::source(&built, Target::Sm90a).unwrap_or_else(|e| panic!("{e:?}"));
    assert!(lowered.facts.warnings.iter().all(|w| w.code != "V0550"), "a form that does not apply is no news");

    let (inputs, params) = self::inputs(op.as_ref(), PROBLEMS[3]);
    let placed = place(&device, op.as_ref(), &inputs, &params, &Split(2048)).unwrap_or_else(|e| panic!("{e}"));
    let (built, ..) = form(&device, &placed);
    for target in [Target::Sm80, Target::Sm100a] {
        assert!(built.on(target).kernel.roles.is_empty(), "{}", target.name());
    }
    assert_eq!(built.on(Target::Sm90a).kernel.roles.len(), 4);

    // Where nothing was measured the default stays, which has the form.
    let dims = [("b", 128), ("sq", 1), ("h", 128), ("dk", 576), ("dv", 512), ("page", 64)];
    let dims: BTreeMap<String, usize> = dims.iter().map(|&(k, x)| (k.to_string(), x)).collect();
    let kernel = &placed.plan.steps[0].kernel;
    let chosen = Modelled::new(Target::Sm90a).expect("a chip with a model").choose(kernel.as_ref(), &dims);
    assert_eq!(chosen, kernel.space().default_config());
}

/// What the compiler makes of the form at the widths of the published model.
#[test]
fn the_text_holds_what_makes_the_form_fast() {
    let device = open_with("cpu", &Settings::from_env()).expect("it is everywhere");
    let op = op();
    let (inputs, params) = inputs(op.as_ref(), PROBLEMS[3]);
    let placed = place(&device, op.as_ref(), &inputs, &params, &Split(2048)).unwrap_or_else(|e| panic!("{e}"));
    let (built, kernel, ..) = form(&device, &placed);
    let lowered = compile::source(&built, Target::Sm90a).unwrap_or_else(|e| panic!("{e:?}"));
    let text = &lowered.source.text[lowered.source.text.find("extern \"C\" __global__").expect("a kernel")..];
    let has = |what: &str, part: &str, times: usize| {
        assert_eq!(text.matches(part).count(), times, "{what}: `{part}`\n{text}");
    };
    // Maxima and sums stay in the registers where the unit left the scores: four lanes hold a row.
    has("row maxima", "reduce_lanes<Max, 4>", 1);
    has("row sums", "reduce_lanes<Sum, 4>", 1);
    // Page by page where whole tiles are there; bytes are expected where the copy is, since threads fill other items.
    has("bytes of a copy", "mbar_expect_tx(", 1);
    // 256 columns would want more registers than a block of 512 threads has: two instructions of 128.
    has("products", "wgmma_m64n128k16", 4);
    // Factors of one are not multiplied with.
    has("skipped factors", "__all_sync", 2);
    let placed = print::text(&kernel);
    for mailbox in ["weights", "shrinks"] {
        assert!(!placed.contains(&format!("role_barrier \"{mailbox}")), "{placed}");
    }
}

/// A mutation of the placed kernel: text that is replaced, behind another text, and who notices it first.
type Mutation = (&'static str, &'static str, &'static str, &'static str, &'static str);

const FENCE: &str = "          async_fence \"threads wrote the slot, engines may read it\"\n";
const MUTATIONS: &[Mutation] = &[
    ("the right half keeps its tiles", "program 2 {", "          release 0 part 0\n", "", "protocol V0504"),
    ("scores walk two slots at a time", "program 0 {", "advance 0 by 1", "advance 0 by 2", "protocol V0504"),
    ("weights that engines read have no fence", "acquire 1 part 0", FENCE, "", "visibility V0521"),
    ("keys that threads fill have no fence", "program 3 {", FENCE, "", "visibility V0521"),
    (
        "a tile is filled in both ways",
        "program 3 {",
        "          } else {\n",
        "          }\n          CONDITION {\n",
        "protocol V0505",
    ),
    ("a tile that ends behind the last key is copied", "program 3 {", "step.1 * 64 + 64,", "step.1 * 64,", "values"),
    ("a key too many", "program 3 {", "compare_index lt", "compare_index le", "values"),
    ("the left half of the values twice", "program 2 {", "* 12288 + 64", "* 12288", "values"),
    (
        "sums of weights in another order",
        "program 0 {",
        "order(lanes 4 per_lane 2)",
        "order(lanes 8 per_lane 1)",
        "values",
    ),
];

fn bytes(args: &[Arg]) -> Vec<Vec<u8>> {
    let of = |a: &Arg| if let Arg::Tensor(v) = a { v.memory.host().map(HostMemory::to_bytes) } else { None };
    args.iter().filter_map(of).collect()
}

/// Who notices a mutant first: a judge of the verifier, the interpreter in some order, or the values.
fn noticed(kernel: &Kernel, syms: &[i64], args: &dyn Fn() -> Vec<Arg>, expected: &[Vec<u8>]) -> String {
    let names = ["protocol", "small states", "visibility", "resources"];
    let judges = valid::each_judge(kernel);
    if let Some((name, found)) = names.iter().zip(&judges).find(|(_, found)| !found.is_empty()) {
        return format!("{name} {}", found[0].code);
    }
    let args = args();
    match roles::run(kernel, &valid::Facts::default(), syms, &args, &Schedule::series(4)) {
        Err(found) => format!("interpreter {}", found[0].code),
        Ok(r) if !r.findings.is_empty() => format!("interpreter {}", r.findings[0].code),
        Ok(_) if bytes(&args) != expected => "values".into(),
        Ok(_) => "nothing".into(),
    }
}

#[test]
fn mutations_of_the_placed_form_are_noticed() {
    let device = open_with("cpu", &Settings::from_env()).expect("it is everywhere");
    let op = op();
    let (inputs, params) = inputs(op.as_ref(), PROBLEMS[0]);
    let fresh = || place(&device, op.as_ref(), &inputs, &params, &Split(2048)).unwrap_or_else(|e| panic!("{e}"));
    let (_, kernel, syms, first) = form(&device, &fresh());
    let text = print::text(&kernel);
    assert_eq!(noticed(&kernel, &syms, &|| first.clone(), &[]), "values", "the form as it is has no findings");
    let expected = bytes(&first);
    let mut wrong = vec![];
    for (what, after, from, to, by) in MUTATIONS {
        let start = text.find(after).unwrap_or_else(|| panic!("{what}: `{after}` is not in the text:\n{text}"));
        let at = text[start..].find(from).unwrap_or_else(|| panic!("{what}: `{from}` is not in the text:\n{text}"));
        let at = start + at;
        let condition = text[..at].rfind("if %").and_then(|i| text[i..].split(" {").next()).unwrap_or_default();
        let to = to.replace("CONDITION", condition);
        let mutant = format!("{}{to}{}", &text[..at], &text[at + from.len()..]);
        let mutant = parse::kernel(&mutant).unwrap_or_else(|e| panic!("{what}: {e}"));
        let got = noticed(&mutant, &syms, &|| fresh().plan.steps[0].args.clone(), &expected);
        if got != *by {
            wrong.push(format!("{what}: noticed by {got}, not {by}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
