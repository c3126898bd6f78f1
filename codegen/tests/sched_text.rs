//! Scheduled kernels as text: they read back as they were printed, keep the rules of rings, run in the interpreter, and
//! break under mutations that somebody notices.

#![allow(clippy::print_stdout, reason = "times and catchers are named in the test's output")]

#[path = "sched_support/mutations.rs"]
mod mutations;

use kiln_codegen::ir::{parse, print};

#[test]
fn scheduled_text_reads_back() {
    let text = include_str!("sched/gemm_fp8.ir");
    let kernel = parse::kernel(text).unwrap_or_else(|e| panic!("{e:?}"));
    let printed = print::text(&kernel);
    let again = parse::kernel(&printed).unwrap_or_else(|e| panic!("{e:?}\n{printed}"));
    assert_eq!(printed, print::text(&again));
    assert_eq!(kernel.roles.len(), 2);
    assert_eq!(kernel.rings[0].parts[0].buffers.len(), 3);
}

/// Every scheduled form written by hand, and every plain one under its automatic schedule, keeps the rules of rings.
#[test]
fn rings_of_all_forms_are_correct() {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sched");
    let mut seen = 0;
    for entry in std::fs::read_dir(dir).expect("readable") {
        let path = entry.expect("an entry").path();
        let text = std::fs::read_to_string(&path).expect("readable");
        let kernel = parse::kernel(&text).unwrap_or_else(|e| panic!("{e:?}"));
        seen += 1;
        if kernel.stage == kiln_codegen::ir::Stage::Scheduled {
            if let Err(found) = kiln_codegen::valid::check(&kernel) {
                let found: Vec<String> = found.iter().map(ToString::to_string).collect();
                panic!("{}:\n{}", path.display(), found.join("\n"));
            }
        } else {
            // The schedule's kernel is checked where it is made.
            let built = kiln_codegen::compile::check(kernel).unwrap_or_else(|e| panic!("{}: {e:?}", path.display()));
            kiln_codegen::compile::scheduled(&built, kiln_codegen::target::Target::Sm90a)
                .unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        }
    }
    assert!(seen >= 17, "{seen} forms");
}

/// What the automatic schedule makes of a plain kernel gives its bits, in every order, with and without clusters.
#[test]
fn scheduled_and_plain_give_the_same_bits() {
    use kiln_codegen::schedule::{Options, apply, automatic};
    use kiln_codegen::vm::roles::{Schedule, run_checked};
    let built = kiln_codegen::compile::check(parse::kernel(include_str!("sched/gemm_fp8_plain.ir")).expect("a kernel"));
    let built = built.unwrap_or_else(|e| panic!("{e:?}"));
    let caps = kiln_codegen::target::Target::Sm90a.caps().expect("limits");
    let (syms, args) = mutations::problem(&built.kernel);
    for (stages, cluster, share_left, dependent) in
        [(1, 1, true, false), (3, 1, true, true), (2, 2, true, false), (3, 2, false, true), (2, 4, true, false)]
    {
        let o = Options { stages, cluster, share_left, ..Options::default() };
        let mut s = automatic(&built.kernel, &caps, &o).unwrap_or_else(|e| panic!("{o:?}: {e}"));
        s.dependent = dependent;
        let k = apply(&built.kernel, &s, &caps).unwrap_or_else(|e| panic!("{o:?}: {e}"));
        let facts = kiln_codegen::valid::check(&k).unwrap_or_else(|e| panic!("{o:?}: {e:?}"));
        let forms = [(&built.kernel, &built.facts), (&k, &facts)];
        let report = run_checked(forms, &syms, &mutations::own(&args), &Schedule::series(3));
        let found = report.unwrap_or_else(|e| panic!("{o:?}: {e:?}")).findings;
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert!(found.is_empty(), "{o:?}: {}", found.join("\n"));
    }
}

/// Parts of a sum by blocks, by instances that take turns and by both, and walks over rows of groups give the bits of the
/// plain kernel in every order.
#[test]
fn sums_of_parts_and_rows_of_groups_give_the_bits_of_the_plain_kernel() {
    for name in [
        "gemm_fp8_few, by turns of 1",
        "gemm_fp8_few, by turns of 2",
        "gemm_fp8_few, by turns of 4",
        "gemm_fp8_masked, in clusters of 1",
        "gemm_fp8_masked, in clusters of 2",
    ] {
        let (file, _) = name.split_once(", ").expect("a form of a file");
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/sched/{file}.ir"));
        let text = std::fs::read_to_string(path).expect("readable");
        let built = kiln_codegen::compile::check(parse::kernel(&text).unwrap_or_else(|e| panic!("{e:?}")));
        let built = built.unwrap_or_else(|e| panic!("{name}: {e:?}"));
        let form = mutations::form(name);
        let facts = kiln_codegen::valid::check(&form.kernel).unwrap_or_else(|found| {
            panic!("{name}: {}\n{}", found.iter().map(ToString::to_string).collect::<String>(), form.text)
        });
        let forms = [(&built.kernel, &built.facts), (&form.kernel, &facts)];
        let ways = kiln_codegen::vm::roles::Schedule::series(6);
        let report = kiln_codegen::vm::roles::run_checked(forms, &form.syms, &mutations::own(&form.args), &ways);
        let found = report.unwrap_or_else(|e| panic!("{name}: {e:?}")).findings;
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert!(found.is_empty(), "{name}: {}", found.join("\n"));
    }
}

/// Where the report of scheduled kernels begins in `docs/mutations.md`; what stands before is another test's.
const MARK: &str = "## Scheduled kernels\n";

#[test]
fn every_mutation_of_a_scheduled_kernel_is_noticed_by_whom_the_report_says() {
    let mut missed = vec![];
    for (m, n) in mutations::rows() {
        println!("{} | {} | {} | {}", m.form, m.what, n.judges.join(" | "), n.run);
        if n.first() == "nothing" && !mutations::HARMLESS.iter().any(|h| h.0 == m.what) {
            missed.push(format!("{}: {}", m.form, m.what));
        }
    }
    assert!(mutations::TABLE.len() >= 40, "only {} mutations", mutations::TABLE.len());
    assert!(missed.is_empty(), "nothing notices, and no reason is written down:\n{}", missed.join("\n"));
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/mutations.md");
    let old = std::fs::read_to_string(&path).unwrap_or_default();
    let head = &old[..old.find(MARK).unwrap_or(old.len())];
    let text = format!("{}\n\n{}", head.trim_end(), mutations::report(mutations::rows()));
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &text).expect("docs can be written");
        return;
    }
    assert!(old == text, "docs/mutations.md is out of date; run with BLESS=1 and read the diff:\n{text}");
}
