//! Mutations of scheduled kernels: forms written by hand (`sched/*.ir`) and what the automatic schedule makes of the plain
//! form of the real `gemm_fp8`. Each mutant is shown to every judge of the verifier alone, then
//! run by the interpreter of roles, also where the verifier refuses it.

use kiln_codegen::abi::{Arg, TensorView};
use kiln_codegen::compile;
use kiln_codegen::formats;
use kiln_codegen::host_memory::HostMemory;
use kiln_codegen::ir::{DType, IxExpr, IxId, Kernel, ParamKind, Stage, parse, print};
use kiln_codegen::schedule::{Options, apply, automatic};
use kiln_codegen::target::Target;
use kiln_codegen::valid;
use kiln_codegen::vm::roles::{self, Schedule};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// One mutation: text that is replaced, each behind another text (empty for the start).
pub struct Mutation {
    pub form: &'static str,
    pub what: &'static str,
    pub edits: &'static [(&'static str, &'static str, &'static str)],
}

const fn row(
    form: &'static str,
    what: &'static str,
    edits: &'static [(&'static str, &'static str, &'static str)],
) -> Mutation {
    Mutation { form, what, edits }
}

/// A scheduled kernel with a small problem of several tiles, more steps than slots, and tails.
pub struct Form {
    pub kernel: Kernel,
    pub text: String,
    pub syms: Vec<i64>,
    pub args: Vec<Arg>,
}

const FP8: &str = "gemm_fp8_halves";
const CLUSTER: &str = "gemm_fp8";
const PARTS: &str = "gemm_bf16_parts";
const SHARED: &str = "gemm_fp8_plain, in clusters of 2";
const BLOCKS: &str = "gemm_fp8_few, by turns of 1";
const TURNS: &str = "gemm_fp8_few, by turns of 2";
const ROWS: &str = "gemm_fp8_masked, in clusters of 2";
const MATH: &str = "program 1 {";

/// What noticed a mutant, by judge.
pub struct Noticed {
    pub judges: [String; 4],
    pub run: String,
}

impl Noticed {
    /// The first that notices.
    pub fn first(&self) -> &str {
        let names = ["verifier, protocol", "verifier, small states", "verifier, visibility", "verifier, resources"];
        for (j, name) in self.judges.iter().zip(names) {
            if !j.is_empty() {
                return name;
            }
        }
        if self.run.starts_with("refused") {
            return "verifier, text";
        }
        match self.run.as_str() {
            "" => "nothing",
            "values" => "values",
            _ => "interpreter",
        }
    }
}

/// The forms, by name.
pub fn form(name: &str) -> Form {
    let (file, how) = name.split_once(", ").unwrap_or((name, ""));
    let number = |what: &str| how.strip_prefix(what).and_then(|n| n.parse().ok()).unwrap_or(1);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/sched/{file}.ir"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut kernel = parse::kernel(&text).unwrap_or_else(|e| panic!("{name}: {e:?}"));
    if kernel.stage == Stage::Plain {
        let built = compile::check(kernel).unwrap_or_else(|e| panic!("{name}: {e:?}"));
        let caps = Target::Sm90a.caps().expect("limits");
        let (cluster, turns) = (number("in clusters of "), number("by turns of "));
        let o = Options { stages: 2 * turns, cluster, turns, ..Options::default() };
        let s = automatic(&built.kernel, &caps, &o).unwrap_or_else(|e| panic!("{name}: {e}"));
        kernel = apply(&built.kernel, &s, &caps).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
    let (syms, args) = problem(&kernel);
    let text = print::text(&kernel);
    Form { kernel, text, syms, args }
}

/// Rows of groups: none, all, past the room, fewer than none, a tail.
const COUNTS: [i64; 5] = [5, 0, 200, -1, 129];

/// Sizes and data of a matrix product.
pub fn problem(k: &Kernel) -> (Vec<i64>, Vec<Arg>) {
    let fp8 = k.name.contains("fp8");
    let (m, n, depth) = match k.name.as_str() {
        "gemm_fp8_few" => (20, 136, 1200),
        "gemm_fp8_masked" => (140, 136, 272),
        _ => (140, 136, if fp8 { 400 } else { 296 }),
    };
    let blocks = (depth as usize).div_ceil(128) as i64;
    let value = |name: &str| -> i64 {
        match name {
            "m" => m,
            "n" => n,
            "k" => depth,
            "lda" => depth + 16,
            "ldb" => depth + 32,
            "ldd" => n + 8,
            "ka" | "kb" => blocks,
            "nb" => (n + 127) / 128,
            "sa.stride1" => m,
            "g" => COUNTS.len() as i64,
            "gla" => m * (depth + 16) + 32,
            "glb" => n * (depth + 32),
            "gld" => m * (n + 8) + 8,
            "gsa" => m * blocks + 4,
            "gsb" => ((n + 127) / 128 * blocks + 3) / 4 * 4,
            // Sizes of parameters that are left out.
            "wa" | "ma" | "wb" | "na" | "ldc" => 0,
            other => panic!("no value for `{other}`"),
        }
    };
    let syms: Vec<i64> = k.syms.iter().map(|s| value(&s.name)).collect();
    let at = |id: IxId| -> usize { index(k, id, &syms) as usize };
    let args = k
        .params
        .iter()
        .enumerate()
        .map(|(p, param)| {
            let ParamKind::Tensor { dtype, extents, strides, .. } = &param.kind else { return Arg::Absent };
            let shape: Vec<usize> = extents.iter().map(|&e| at(e)).collect();
            let steps: Vec<usize> = strides.iter().map(|&e| at(e)).collect();
            Arg::Tensor(matrix(*dtype, &shape, &steps, p))
        })
        .collect();
    (syms, args)
}

fn index(k: &Kernel, id: IxId, syms: &[i64]) -> i64 {
    let two = |a, b| (index(k, a, syms), index(k, b, syms));
    match k.ix_expr(id) {
        IxExpr::Const(c) => c,
        IxExpr::Sym(s) => syms[s.0 as usize],
        IxExpr::Add(a, b) => two(a, b).0 + two(a, b).1,
        IxExpr::Div(a, b) => two(a, b).0 / two(a, b).1,
        e => panic!("{e:?}"),
    }
}

fn matrix(dtype: DType, shape: &[usize], strides: &[usize], seed: usize) -> TensorView {
    let count: usize = shape.iter().zip(strides).map(|(&e, &s)| (e.max(1) - 1) * s).sum::<usize>() + 1;
    let mut bytes = vec![0; dtype.bytes(count)];
    if dtype == DType::I32 {
        let bytes: Vec<u8> = COUNTS.iter().flat_map(|&c| (c as i32).to_le_bytes()).collect();
        let memory = Arc::new(HostMemory::from_bytes(&bytes));
        return TensorView { dtype, shape: shape.to_vec(), strides: strides.to_vec(), offset_bytes: 0, memory };
    }
    for i in 0..shape.iter().product() {
        let v = ((i * 7 + i / 13 + seed * 5) % 23) as f32 * 0.25 - 2.75;
        let v = if dtype == DType::F32 { 0.3 + v.abs() } else { v };
        let (mut place, mut rest) = (0, i);
        for (e, s) in shape.iter().zip(strides).rev() {
            place += rest % e * s;
            rest /= e;
        }
        formats::store_bits(&mut bytes, dtype, place, formats::encode_f32(dtype, v));
    }
    let memory = Arc::new(HostMemory::from_bytes(&bytes));
    TensorView { dtype, shape: shape.to_vec(), strides: strides.to_vec(), offset_bytes: 0, memory }
}

pub fn own(args: &[Arg]) -> Vec<Arg> {
    let copy = |a: &Arg| match a {
        Arg::Tensor(v) => {
            let bytes = v.memory.host().map(HostMemory::to_bytes).unwrap_or_default();
            Arg::Tensor(TensorView { memory: Arc::new(HostMemory::from_bytes(&bytes)), ..v.clone() })
        }
        Arg::Scalar(_) | Arg::Absent | Arg::Workspace { .. } => a.clone(),
    };
    args.iter().map(copy).collect()
}

impl Form {
    /// Runs a kernel on the form's problem: codes of findings, or the bytes of all arguments.
    pub fn run(&self, kernel: &Kernel) -> Result<Vec<Vec<u8>>, String> {
        let args = own(&self.args);
        let facts = valid::Facts::default();
        match roles::run(kernel, &facts, &self.syms, &args, &Schedule::series(3)) {
            Err(found) => Err(codes(found.iter().map(|d| d.code))),
            Ok(r) if !r.findings.is_empty() => {
                // Findings of the model begin with their name, others have a code only.
                let name = |d: &kiln_codegen::diag::Diagnostic| match d.message.split_once(':') {
                    Some((name, _)) if name.bytes().all(|c| c.is_ascii_uppercase() || c == b'_') => name.to_string(),
                    Some(_) | None => d.code.to_string(),
                };
                let names: Vec<String> = r.findings.iter().map(name).collect();
                Err(codes(names.iter().map(String::as_str)))
            }
            Ok(_) => Ok(bytes(&args)),
        }
    }

    /// Who notices a mutant.
    pub fn noticed(&self, m: &Mutation, expected: &[Vec<u8>]) -> Result<Noticed, String> {
        let mut text = self.text.clone();
        for (after, from, to) in m.edits {
            let lost = |t: &str| format!("{}, {}: `{t}` is not in the text:\n{text}", m.form, m.what);
            let start = text.find(after).ok_or_else(|| lost(after))?;
            let at = text[start..].find(from).ok_or_else(|| lost(from))? + start;
            text = format!("{}{to}{}", &text[..at], &text[at + from.len()..]);
        }
        let refused = |why: String| Noticed { judges: Default::default(), run: format!("refused: {why}") };
        let kernel = match parse::kernel(&text) {
            Ok(k) => k,
            Err(e) => return Ok(refused(e.to_string().lines().next().unwrap_or_default().to_string())),
        };
        let judges = valid::each_judge(&kernel).map(|list| codes(list.iter().map(|d| d.code)));
        // What the judges of rings do not see may be seen by the others: it must not get past all of them unseen.
        let run = match self.run(&kernel) {
            Err(codes) => codes,
            Ok(got) if got != expected => "values".into(),
            Ok(_) => String::new(),
        };
        Ok(Noticed { judges, run })
    }
}

/// Every mutation with who notices it; the unchanged forms are noticed by nobody.
pub fn rows() -> &'static [(&'static Mutation, Noticed)] {
    static ROWS: OnceLock<Vec<(&'static Mutation, Noticed)>> = OnceLock::new();
    ROWS.get_or_init(|| {
        let mut forms: BTreeMap<&str, (Form, Vec<Vec<u8>>)> = BTreeMap::new();
        TABLE
            .iter()
            .map(|m| {
                let (form, expected) = forms.entry(m.form).or_insert_with(|| {
                    let start = std::time::Instant::now();
                    let form = form(m.form);
                    if let Err(found) = valid::check(&form.kernel) {
                        panic!("{}: {}", m.form, found.iter().map(ToString::to_string).collect::<String>());
                    }
                    let expected = form.run(&form.kernel).unwrap_or_else(|e| panic!("{} as it is: {e}", m.form));
                    println!("{}: {:.2} s for 3 runs", m.form, start.elapsed().as_secs_f64());
                    (form, expected)
                });
                (m, form.noticed(m, expected).unwrap_or_else(|e| panic!("{e}")))
            })
            .collect()
    })
}

/// The section of the report.
pub fn report(rows: &[(&Mutation, Noticed)]) -> String {
    let mut t = String::from(
        "## Scheduled kernels\n\nGenerated by `cargo test -p kiln-codegen --test sched_text` with `BLESS=1`. The same for kernels with roles: forms of `codegen/tests/sched`, and what the automatic schedule makes of the\n\
         plain forms of the real `gemm_fp8`, of its few rows with K in four parts, and of its rows of groups. Every judge sees every mutant alone: the four of the verifier (the symbolic protocol, a few\n\
         turns of the rings in adverse orders, visibility, resources) and the interpreter of roles, whose seeded orders run also\n\
         what the verifier refuses. `values` are those of the interpreter, compared to the bit.\n\n",
    );
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for (_, n) in rows {
        *counts.entry(n.first()).or_default() += 1;
    }
    for (who, n) in &counts {
        t += &format!("- first {who}: {n}\n");
    }
    let seen = rows.iter().filter(|r| !r.1.run.is_empty()).count();
    t += &format!("- by the interpreter too, or alone: {seen}\n- in all: {}\n\n", rows.len());
    t += "| form | defect | protocol | small states | visibility | resources | interpreter |\n|---|---|---|---|---|---|---|\n";
    for (m, n) in rows {
        t += &format!("| {} | {} | {} | {} |\n", m.form, m.what, n.judges.join(" | "), n.run);
    }
    t
}

/// Mutants that change nothing the kernel is judged by, with the reason.
pub const HARMLESS: &[(&str, &str)] = &[];

pub const TABLE: &[Mutation] = &[
    row(FP8, "dropped release", &[(MATH, "release [0 0]", "release []")]),
    row(FP8, "dropped publish", &[("", "            publish 0 part 0\n", "")]),
    row(FP8, "the producer takes instead of acquiring", &[("", "acquire 0 part 0", "take 0 part 0")]),
    row(FP8, "the producer does not advance", &[("", "            advance 0 by 1\n", "")]),
    row(FP8, "the consumer does not advance", &[(MATH, "            advance 0 by 1\n", "")]),
    row(FP8, "the producer advances by 2", &[("", "advance 0 by 1", "advance 0 by 2")]),
    row(FP8, "the consumer advances by 2", &[(MATH, "advance 0 by 1", "advance 0 by 2")]),
    row(
        FP8,
        "both advance by 2",
        &[("", "advance 0 by 1", "advance 0 by 2"), (MATH, "advance 0 by 1", "advance 0 by 2")],
    ),
    row(
        FP8,
        "released twice",
        &[(MATH, "            advance 0", "            release 0 part 0\n            advance 0")],
    ),
    row(
        FP8,
        "released before it is read",
        &[
            (MATH, "            wgmma", "            release 0 part 0\n            wgmma"),
            (MATH, "release [0 0]", "release []"),
        ],
    ),
    row(FP8, "taken twice", &[(MATH, "            wgmma", "            take 0 part 0 slot extra\n            wgmma")]),
    row(FP8, "the consumer walks one step less", &[(MATH, " in 0..", " in 1..")]),
    row(FP8, "the producer walks one step less", &[("", " in 0..", " in 1..")]),
    row(FP8, "wrong depth of the ring", &[("", "ring operands depth 4", "ring operands depth 3")]),
    row(FP8, "wrong distance of slots", &[("program 0 {", " * 16384", " * 8192")]),
    row(FP8, "the consumer reads slot 0 always", &[(MATH, "offset s.1 * 16384 + group", "offset group")]),
    row(FP8, "a box brings fewer rows", &[("", "box [128, 128]", "box [128, 96]")]),
    row(FP8, "rows of a box narrower than the swizzle", &[("", "box [128, 128]", "box [64, 128]")]),
    row(FP8, "half of the rows are copied", &[("", "extents [128, 128] ring", "extents [64, 128] ring")]),
    row(FP8, "wrong swizzle of a map", &[("", "swizzle 128", "swizzle 64")]),
    row(FP8, "wrong swizzle of a tile", &[("", "swizzle 3 4 3", "swizzle 2 4 3")]),
    row(FP8, "tiles overlap", &[("", "offset 65536)", "offset 32768)")]),
    row(FP8, "missing fence before the store", &[(MATH, "async_fence", "role_barrier")]),
    row(FP8, "missing barrier behind the fence", &[("async_fence", "role_barrier", "async_fence")]),
    row(FP8, "missing barrier before the tile is written again", &[(MATH, "role_barrier", "async_fence")]),
    row(FP8, "missing wait before the tile is written again", &[(MATH, "          tma_store_wait 0\n", "")]),
    row(FP8, "missing wait at the end", &[("tma_store map", "        tma_store_wait 0\n", "")]),
    row(FP8, "missing wait for the kernel before, in the loads", &[("program 0 {", "        grid_wait\n", "")]),
    row(FP8, "missing wait for the kernel before, in the products", &[(MATH, "        grid_wait\n", "")]),
    row(FP8, "both groups stage at the same place", &[("parallel", " group * 8192", " 0")]),
    row(FP8, "budgets past the register file", &[("", "registers 232", "registers 240")]),
    row(FP8, "a budget that is no multiple of 8", &[("", "registers 232", "registers 228")]),
    row(FP8, "a budget below the accumulators", &[("", "registers 232", "registers 120")]),
    row(FP8, "roles share warps", &[("", "role load warps 8 4", "role load warps 4 4")]),
    row(FP8, "producer and consumer exchanged", &[("", "producer 0 consumers [1]", "producer 1 consumers [0]")]),
    row(FP8, "groups of three warps", &[("", "role math warps 0 4", "role math warps 0 3")]),
    row(FP8, "both groups read the same rows", &[(MATH, " + group * 8192", "")]),
    row(FP8, "coordinates exchanged", &[("tma_load map 0", "at [ki * 128, mi * 128]", "at [mi * 128, ki * 128]")]),
    row(FP8, "the store goes one row down", &[("tma_store map", "group * 64]", "group * 64 + 1]")]),
    row(FP8, "the accumulator starts anew each step", &[("", "wgmma ", "wgmma.set ")]),
    row(FP8, "the accumulator is not cleared", &[("", "          fill $acc = %0\n", "")]),
    row(PARTS, "a product that is not waited for", &[(MATH, "release [0 0, 0 1]", "release [] hold")]),
    row(
        PARTS,
        "released while a product goes on",
        &[(
            MATH,
            "release [0 0, 0 1]\n",
            "release [] hold\n            release 0 part 0\n            release 0 part 1\n            wgmma_wait 0\n",
        )],
    ),
    row(
        PARTS,
        "a product is waited for after its accumulator is read",
        &[(
            MATH,
            "release [0 0, 0 1]\n",
            "release [] hold\n            wgmma_wait 1\n            release 0 part 0\n            release 0 part 1\n",
        )],
    ),
    row(PARTS, "one part is not taken", &[(MATH, "            take 0 part 0 slot", "            take 0 part 1 slot")]),
    row(PARTS, "a copy is counted on the other part", &[("tma_load map 1", "ring 0 part 1", "ring 0 part 0")]),
    row(PARTS, "one part is not released", &[(MATH, "release [0 0, 0 1]", "release [0 0]")]),
    row(PARTS, "one part takes over memory that its reader still needs", &[("", "b (@b_s)", "b (@b_s) reuses 0")]),
    row(
        PARTS,
        "a part is published before its copy",
        &[
            ("program 0 {", "            publish 0 part 0\n", ""),
            ("program 0 {", "            tma_load map 0", "            publish 0 part 0\n            tma_load map 0"),
        ],
    ),
    row(SHARED, "missing barrier of the cluster at the end", &[("", "    cluster_barrier", "    async_fence")]),
    row(CLUSTER, "missing barrier of the cluster at the end", &[("", "    cluster_barrier", "    async_fence")]),
    row(CLUSTER, "releases do not reach the neighbour", &[("ring operands", " multicast", "")]),
    row(CLUSTER, "shares of other heights than the boxes", &[("", "box [128, 128]", "box [128, 256]")]),
    row(SHARED, "releases do not reach the neighbour", &[("ring operands", " multicast", "")]),
    row(BLOCKS, "missing barrier of the cluster at the end", &[("", "    cluster_barrier", "    async_fence")]),
    row(BLOCKS, "all blocks take the first part", &[("program 0 {", "rank", "0")]),
    row(BLOCKS, "a sum of fewer blocks", &[("", "cluster 4 axis none", "cluster 2 axis none")]),
    row(BLOCKS, "neighbours instead of sharers", &[("", "cluster 4 axis none", "cluster 4 axis 0")]),
    row(TURNS, "parts are not added up", &[(MATH, "          combine @acc inbox @parts turns 2\n", "")]),
    row(TURNS, "no instance waits for its turn", &[("ring operands", " turns 2", "")]),
    row(TURNS, "an instance takes each item", &[(MATH, "advance 0 by 2", "advance 0 by 1")]),
    row(TURNS, "an instance takes each third item", &[(MATH, "advance 0 by 2", "advance 0 by 3")]),
    row(TURNS, "more take turns than there are slots", &[("", "ring operands depth 4", "ring operands depth 1")]),
    row(TURNS, "items of one turn only", &[("program 0 {", " in 0..2 {", " in 0..1 {")]),
    row(TURNS, "fewer add up than take turns", &[(MATH, " turns 2", " turns 1")]),
    row(
        TURNS,
        "the inbox is too small",
        &[("", "alloc @parts: shared f32[3, 1024]", "alloc @parts: shared f32[2, 1024]")],
    ),
    row(
        TURNS,
        "added up in the loop",
        &[(
            MATH,
            "            advance 0 by 2",
            "            combine @acc inbox @parts turns 2\n            advance 0 by 2",
        )],
    ),
    row(TURNS, "one block's instances add up", &[("", "cluster 2 axis none", "cluster 1 axis none")]),
    row(TURNS, "all blocks store", &[(MATH, "compare_index eq rank, 0", "compare_index eq rank, rank")]),
    row(TURNS, "all who take turns store", &[(MATH, "compare_index eq group, 0", "compare_index eq group, group")]),
    row(TURNS, "the inbox lies where the ring does", &[("alloc @parts", "offset 41472", "offset 32768")]),
    row(ROWS, "the loads walk over all tiles", &[("program 0 {", " rows $count by 128", "")]),
    row(
        ROWS,
        "both walk over all tiles",
        &[("program 0 {", " rows $count by 128", ""), (MATH, " rows $count by 128", "")],
    ),
    row(ROWS, "tiles of other heights", &[(MATH, "by 128", "by 64")]),
];

fn codes<'a>(all: impl Iterator<Item = &'a str>) -> String {
    let mut list: Vec<&str> = all.collect();
    list.sort_unstable();
    list.dedup();
    list.join(" ")
}

fn bytes(args: &[Arg]) -> Vec<Vec<u8>> {
    args.iter()
        .filter_map(|a| match a {
            Arg::Tensor(v) => v.memory.host().map(HostMemory::to_bytes),
            Arg::Scalar(_) | Arg::Absent | Arg::Workspace { .. } => None,
        })
        .collect()
}
