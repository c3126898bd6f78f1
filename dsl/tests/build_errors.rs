//! Mistakes only the builder can see: each has a code, the user's position, and all of them come at once.

mod common;

use common::{build, request};
use dsl::prelude::*;
use kiln_codegen::diag::Diagnostic;
use kiln_codegen::spec::{BuildRequest, KernelDef};

#[track_caller]
fn errors(def: &dyn KernelDef, fixed: &[(&str, usize)]) -> Vec<Diagnostic> {
    def.build(&request(def, fixed)).expect_err("the kernel is wrong")
}

/// Compares codes, and that each error points at the text after `at` of this file.
#[track_caller]
fn check(def: &dyn KernelDef, want: &[(&str, &str)]) {
    let source: Vec<_> = include_str!("build_errors.rs").lines().collect();
    let got = errors(def, &[]);
    let found = |d: &Diagnostic| {
        let text = source.get(d.span.line as usize - 1).and_then(|l| l.get(d.span.column as usize - 1..)).unwrap_or("");
        (d.code.to_string(), text.to_string())
    };
    let got: Vec<_> = got.iter().map(found).collect();
    assert_eq!(got.len(), want.len(), "{got:#?}");
    for ((code, text), (want_code, want_text)) in got.iter().zip(want) {
        assert!(
            code == want_code && text.starts_with(want_text),
            "expected {want_code} at `{want_text}`, got {got:#?}"
        );
    }
}

#[kernel]
fn many(x: In![F32; m, n], y: Out![F32; m, n]) {
    let i = grid(m);
    let a = frag::<F32, 2>([4, 8]);
    let b = frag::<F32, 2>([8, 4]);
    copy(a, b);
    copy(x, y);
    let c = a.reshape([5, 5]);
    let d = reduce_sum(c, 7);
    let e = a.cols(6, 9);
    zero(e);
    let f = shared::<F32, 1>([0]);
    warps(0);
    grid(n);
    y[(i / 0, 0)] = d[0];
    zero(f);
}

#[test]
fn all_mistakes_come_at_once() {
    check(
        &*many::kernel(),
        &[
            ("B0201", "copy(a, b)"),
            ("B0204", "copy(x, y)"),
            ("B0203", "reshape"),
            ("B0208", "reduce_sum"),
            ("B0207", "cols"),
            ("B0202", "shared"),
            ("B0106", "warps"),
            ("B0104", "grid(n)"),
            ("B0206", "/ 0"),
        ],
    );
}

#[kernel]
fn nesting(x: In![F32; n], y: Out![F32; n]) {
    grid(n);
    let t = frag::<F32, 1>([4]);
    for i in parallel([4]) {
        for j in parallel([4]) {
            y[i + j] = x[i];
        }
        zero(t);
        helper(t);
        let m = tile_max([4], |k| t[k]);
        for q in 0..4 {
            if m > 0.0 {
                break;
            }
            y[q] = m;
        }
    }
    if x[0] > 0.0 {
        grid(n);
    }
}
#[kernel_fn]
fn helper(t: Tile<F32, Frag, 1>) {
    let s = reduce_sum(t, 0);
    t[0] = s;
}

#[test]
fn tile_ops_inside_element_bodies() {
    let def = nesting::kernel();
    check(
        &*def,
        &[
            ("B0301", "parallel"),
            ("B0301", "zero(t)"),
            ("B0301", "reduce_sum"),
            ("B0301", "tile_max"),
            ("B0303", "break"),
            ("B0104", "grid"),
            ("B0105", "grid"),
        ],
    );
    let all = errors(&*def, &[]);
    assert_eq!(&*all[2].span.frames[0].function, "helper");
    assert!(all[0].context.as_deref().is_some_and(|c| c.starts_with("nesting")));
}

#[kernel]
fn no_grid(y: Out![F32; n]) {
    y[0] = 1.0;
}

#[kernel(dims(h: fixed), require(h % 8 == 0))]
fn fixed(x: In![F32; h], y: Out![F32; h]) {
    grid(1usize);
    let t = frag::<F32, 1>([h]);
    copy(x, t);
    copy(t, y);
}

#[test]
fn grid_dimensions_and_config() {
    check(&*no_grid::kernel(), &[("B0103", "no_grid")]);
    check(&*fixed::kernel(), &[("B0401", "fixed")]);
    let off = errors(&*fixed::kernel(), &[("h", 12)]);
    assert_eq!(off[0].code, "B0403");
    assert!(off[0].message.contains("h % 8 == 0"));
    let mut r = request(&*panics::kernel(), &[]);
    r.config.0.insert("nonsense".into(), kiln_codegen::tune::ConfigValue::Int(1));
    assert_eq!(panics::kernel().build(&r).expect_err("unknown field")[0].code, "B0402");
    build(&*fixed::kernel(), &[("h", 16)]);
    // A request without facts is the plainest launch.
    let plain = BuildRequest { fixed: [("h".to_string(), 16)].into(), ..BuildRequest::default() };
    common::built(fixed::kernel().build(&plain));
}

/// Config of `panics`.
#[derive(KernelConfig, Clone, Debug)]
pub struct Cfg {
    /// Rows.
    #[default(3)]
    pub rows: usize,
}

#[kernel(require(n / cfg.rows > 0, cfg.rows - 4 < 100))]
fn panics(cfg: &Cfg, y: Out![F32; n]) {
    let i = grid(n);
    let t =
        frag::<F32, 1>([4, 5].map(|x| x + 1).iter().sum::<usize>().min(4).max(1).pow(1).to_string().len().into_array());
    y[i] = t.extent(1) as f32;
    assert!(cfg.rows == 4, "rows must be four");
}
trait IntoArray {
    fn into_array(self) -> [usize; 1];
}
impl IntoArray for usize {
    fn into_array(self) -> [usize; 1] {
        [self]
    }
}

#[test]
fn panics_become_diagnostics_and_failing_clauses() {
    check(&*panics::kernel(), &[("B0101", "extent(1)")]);
    let def = panics::kernel();
    let config = def.space().default_config();
    // The second clause underflows: it does not hold, and nothing panics.
    assert_eq!(def.require(&[("n".to_string(), 6)].into(), &config), Err(vec!["cfg.rows - 4 < 100".to_string()]));
    assert_eq!(def.require(&[("n".to_string(), 2)].into(), &config).map_err(|e| e.len()), Err(2));
}

#[kernel]
fn merged(x: In![F32; a, b, c; strides(_, _, 1)], y: Out![F32; c], bytes: In![U8; c, d]) {
    grid(c);
    let m = x.merge_leading();
    let w = bytes.view_as::<F32, 1>(2, d, 6);
    y[0] = m[(0, 0)] + w[0];
}

#[test]
fn views_that_memory_does_not_have() {
    let def = merged::kernel();
    let mut r = request(&*def, &[]);
    r.facts[0].contiguous = false;
    r.facts[0].stride_multiples = vec![1, 1, 0];
    let got = def.build(&r).expect_err("not mergeable");
    assert_eq!(got.iter().map(|d| d.code).collect::<Vec<_>>(), ["B0205", "B0503", "B0503"]);
}

#[kernel]
fn leaky(x: In![F32; m, n], y: Out![F32; m, n]) {
    let i = grid(m.div_ceil(8));
    let slots = ring::<F32, 2>([8, 16], 2);
    let lost = mailbox::<F32, 2>([8, 16]);
    roles(|r| {
        r.group("load", 1).run(|| {
            let slot = slots.acquire();
            slot.fill(x.at((i * 8, 0)));
        });
        r.group("store", 1).run(|| {
            let full = slots.take();
            copy(full.tile(), y.at((i * 8, 0)));
        });
    });
    let late = lost.recv();
    late.release();
}

/// What is acquired or taken and then forgotten, a mailbox nobody uses, and one that is used outside of a role.
#[test]
fn slots_are_used_up() {
    check(&*leaky::kernel(), &[("B0604", "acquire()"), ("B0604", "take()"), ("B0606", "roles("), ("B0603", "recv()")]);
}
