//! Ten kinds of mistake a kernel's author makes, and the message each gives: file, line and column of the mistake, and
//! what to do. From the macro to the machine's limits, in the order a mistake can be found.

use kiln::codegen::compile;
use kiln::codegen::diag::Diagnostic;
use kiln::codegen::spec::{BuildRequest, ParamFacts};
use kiln::codegen::target::Target;
use kiln::op::{HostTensor, KernelDef, TensorView};
use kiln::prelude::*;
use kiln::runtime::{Device, Error, RunOptions};
use std::sync::Arc;

const SOURCE: &str = include_str!("mistakes.rs");

/// Line after the comment `// mistake: name` in this file.
fn line_of(name: &str) -> u32 {
    let mark = format!("// mistake: {name}");
    let found = SOURCE.lines().position(|l| l.trim() == mark).unwrap_or_else(|| panic!("no mark `{mark}`"));
    found as u32 + 2
}

/// One of the findings stands at the mark, says what `text` says, and has advice.
fn check(findings: &[Diagnostic], mark: &str, text: &str) {
    let all: Vec<String> = findings.iter().map(ToString::to_string).collect();
    let all = all.join("\n");
    let found = findings.iter().find(|d| d.message.contains(text) || d.label.contains(text));
    let d = found.unwrap_or_else(|| panic!("no finding says `{text}`:\n{all}"));
    assert!(d.span.file.ends_with("mistakes.rs"), "file of:\n{d}");
    assert_eq!(d.span.line, line_of(mark), "line of:\n{d}");
    assert!(d.span.column > 0, "column of:\n{d}");
    assert!(d.help.as_ref().is_some_and(|h| !h.is_empty()), "no advice in:\n{d}");
}

/// A request as a launch of aligned, contiguous tensors would make it.
fn request(kernel: &Arc<dyn KernelDef>, fixed: &[(&str, usize)]) -> BuildRequest {
    let fact = ParamFacts { present: true, align_bytes: 16, contiguous: true, tma: false, stride_multiples: vec![] };
    BuildRequest {
        config: kernel.space().default_config(),
        fixed: fixed.iter().map(|(k, v)| (k.to_string(), *v)).collect(),
        facts: vec![fact; kernel.info().params.len()],
        ..BuildRequest::default()
    }
}

/// What building and verifying finds.
fn built(kernel: &Arc<dyn KernelDef>, fixed: &[(&str, usize)]) -> Vec<Diagnostic> {
    match compile::build(kernel.as_ref(), &request(kernel, fixed)) {
        Ok(built) => panic!("accepted:\n{}", kiln::codegen::ir::print::text(&built.kernel)),
        Err(findings) => findings,
    }
}

fn sanitizer() -> Device {
    let cpu = kiln::runtime::open("cpu").expect("always there");
    cpu.with_run_options(RunOptions { sanitize: true, ..RunOptions::default() })
}

fn vector(device: &Device, n: usize) -> TensorView {
    device.upload(&HostTensor::from_f64(F32::DTYPE, &[n], &vec![1.0; n])).expect("it fits")
}

/// What the sanitizer finds.
fn stopped(result: Result<(), Error>) -> Vec<Diagnostic> {
    match result {
        Err(Error::Sanitizer { findings, .. }) => findings,
        other => panic!("the sanitizer did not stop it: {other:?}"),
    }
}

/// Messages of the macro with their line and column in the given source.
fn expanded(attribute: &str, item: &str) -> Vec<(String, usize, usize)> {
    let parse = |s: &str| s.parse::<proc_macro2::TokenStream>().expect("tokens");
    let out = kiln_dsl_syntax::kernel(parse(attribute), parse(item), parse("::dsl"));
    let mut found = vec![];
    collect(out, &mut found);
    found
}

/// Finds `compile_error!("..")`, whose tokens carry the span of the mistake.
fn collect(tokens: proc_macro2::TokenStream, out: &mut Vec<(String, usize, usize)>) {
    let list: Vec<proc_macro2::TokenTree> = tokens.into_iter().collect();
    for (i, t) in list.iter().enumerate() {
        if let proc_macro2::TokenTree::Group(g) = t {
            let is_error = i >= 2 && list[i - 2].to_string() == "compile_error";
            if is_error {
                let at = list[i - 2].span().start();
                out.push((g.stream().to_string(), at.line, at.column + 1));
            } else {
                collect(g.stream(), out);
            }
        }
    }
}

#[test]
fn kind_1_syntax_the_language_does_not_have() {
    let source = "fn k(x: In![F32; n], y: Out![F32; n]) {\n    let i = grid(n);\n    return;\n}";
    let found = expanded("", source);
    assert!(found.iter().any(|(m, line, column)| m.contains("return") && (*line, *column) == (3, 5)), "{found:?}");
}

#[test]
fn kind_2_a_dimension_nothing_binds() {
    let source = "fn k(x: In![F32; n / 2], y: Out![F32; m]) {\n    let i = grid(m);\n}";
    let found = expanded("", source);
    let expected = |(m, line, column): &(String, usize, usize)| m.contains("`n`") && *line == 1 && *column > 5;
    assert!(found.iter().any(expected), "{found:?}");
}

#[kernel]
fn wrong_extents(x: In![F32; n], y: Out![F32; n]) {
    let i = grid(n.div_ceil(64)) * 64;
    let a = frag::<F32, 1>([64]);
    let b = frag::<F32, 1>([32]);
    copy(x.at(i), a);
    // mistake: extents
    copy(a, b);
    copy(b, y.at(i));
}

#[test]
fn kind_3_tiles_of_different_shapes() {
    check(&built(&wrong_extents::kernel(), &[]), "extents", "[64]");
}

#[kernel]
fn nested(x: In![F32; n], y: Out![F32; n]) {
    let i0 = grid(n.div_ceil(64)) * 64;
    for i in parallel([64]) {
        // mistake: nested
        for j in parallel([4]) {
            y[i0 + i + j] = x[i0 + i];
        }
    }
}

#[test]
fn kind_4_block_code_in_an_element_body() {
    check(&built(&nested::kernel(), &[]), "nested", "inside an element body");
}

#[kernel]
fn uninitialised(x: In![F32; n], y: Out![F32; n]) {
    let i0 = grid(n.div_ceil(64)) * 64;
    let t = frag::<F32, 1>([64]);
    for i in parallel([64]) {
        // mistake: uninitialised
        y[i0 + i] = x[i0 + i] + t[i];
    }
}

#[test]
fn kind_5_a_tile_read_before_it_is_written() {
    check(&built(&uninitialised::kernel(), &[]), "uninitialised", "written");
}

#[kernel]
fn race(x: In![F32; n], y: Out![F32; n]) {
    let i0 = grid(n.div_ceil(64)) * 64;
    for i in parallel([64]) {
        // mistake: race
        y[i0] = x[i0 + i];
    }
}

#[test]
fn kind_6_two_iterations_write_one_element() {
    check(&built(&race::kernel(), &[]), "race", "twice");
}

#[kernel(batch_invariant(t))]
fn variant(x: In![F32; t, h], y: Out![F32; t]) {
    let r = grid(t);
    let mut s = 0.0f32;
    // mistake: variant
    for j in 0..t {
        s += x[(r, j)];
    }
    y[r] = s;
}

#[test]
fn kind_7_a_property_that_does_not_hold() {
    check(&built(&variant::kernel(), &[]), "variant", "`t`");
}

#[kernel]
fn below_zero(x: In![F32; n], y: Out![F32; n]) {
    let i0 = grid(n.div_ceil(64)) * 64;
    for i in parallel([64]) {
        // mistake: below
        y[i0 + i] = x[i0 + i - 1];
    }
}

#[test]
fn kind_8_an_index_outside_its_tensor() {
    let device = sanitizer();
    let (x, y) = (vector(&device, 100), vector(&device, 100));
    let args = below_zero::Args { x: View::new(&x).unwrap(), y: ViewMut::new(&y).unwrap() };
    let stream = device.stream().unwrap();
    let result = below_zero::launch(&stream, &(), args).and_then(|()| stream.synchronize());
    check(&stopped(result), "below", "-1");
}

#[kernel]
// mistake: uncovered
fn uncovered(x: In![F32; n], y: Out![F32; n]) {
    let i0 = grid(n.div_ceil(64)) * 64;
    for i in parallel([32]) {
        y[i0 + i] = x[i0 + i];
    }
}

#[test]
fn kind_9_elements_of_an_output_that_nothing_writes() {
    let device = sanitizer();
    let (x, y) = (vector(&device, 64), vector(&device, 64));
    let args = uncovered::Args { x: View::new(&x).unwrap(), y: ViewMut::new(&y).unwrap() };
    let stream = device.stream().unwrap();
    let result = uncovered::launch(&stream, &(), args).and_then(|()| stream.synchronize());
    check(&stopped(result), "uncovered", "`y`");
}

#[kernel]
fn too_large(x: In![F32; n], y: Out![F32; n]) {
    let i = grid(n.div_ceil(65536)) * 65536;
    // mistake: large
    let t = shared::<F32, 1>([65536]);
    copy(x.at(i), t);
    copy(t, y.at(i));
}

#[test]
fn kind_10_more_memory_than_the_target_has() {
    let kernel = too_large::kernel();
    let built = compile::build(kernel.as_ref(), &request(&kernel, &[])).expect("the tile VM takes it");
    let findings = compile::source(&built, Target::Sm90a).expect_err("256 KiB do not fit");
    check(&findings, "large", "shared memory");
}

/// Launch mistakes have no line in a kernel; they name kernel and parameter, what was expected, what came, what to do.
#[test]
fn refused_launches_name_the_parameter() {
    let device = sanitizer();
    let (x, y) = (vector(&device, 100), vector(&device, 99));
    let stream = device.stream().unwrap();
    let args = race::Args { x: View::new(&x).unwrap(), y: ViewMut::new(&y).unwrap() };
    let e = race::launch(&stream, &(), args).expect_err("sizes differ").to_string();
    for part in ["`race`", "parameter `y`", "expected", "100", "99"] {
        assert!(e.contains(part), "`{part}` is missing in: {e}");
    }
    let same = race::Args { x: View::new(&x).unwrap(), y: ViewMut::new(&x).unwrap() };
    let e = race::launch(&stream, &(), same).expect_err("output overlaps input").to_string();
    assert!(e.contains("parameter `y`") && e.contains("shares no memory"), "{e}");
    let e = View::<Bf16, 1>::new(&x).expect_err("another dtype").to_string();
    assert!(e.contains("bf16") && e.contains("f32"), "{e}");
}
