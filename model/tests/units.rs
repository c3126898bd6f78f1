//! The functions of `operators` against single vectors of other hands: rotary tables, attention, index scores, mixing of streams,
//! compression, routing. f32, within 1e-5 of each tensor's largest value, as sums in another order leave.

use kiln_codegen::abi::{Launcher, TensorView};
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::spec::{DefaultConfigs, ParamValue, Problem, TensorSpec};
use kiln_model::checkpoint::safetensors::{self, SafeTensors};
use kiln_model::checkpoint::shard::Checkpoint;
use kiln_model::config::Yarn;
use kiln_model::layer::{lists, rotary};
use kiln_model::operators::{Attend, Compress, Gate, Mixing, Operators, Pairs, RopeTable, Tensors};
use kiln_model::speculate::{Look, accept, schedule};
use kiln_runtime::Device;
use serde_json::Value;
use std::path::{Path, PathBuf};

struct Unit {
    file: SafeTensors,
    ops: Operators,
    device: Device,
}

/// A file of the committed folder, and of the one `KILN_ORACLE` names if it has units.
fn files(name: &str) -> Vec<PathBuf> {
    let mut files = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/units").join(name)];
    let other = std::env::var_os("KILN_ORACLE").map(|dir| Path::new(&dir).join("units").join(name));
    files.extend(other.filter(|f| f.exists()));
    files
}

impl Unit {
    /// The committed file, and the one of `KILN_ORACLE`.
    fn all(name: &str) -> Vec<Self> {
        let device = kiln_runtime::open("cpu").expect("always there");
        let open = |file: PathBuf| Unit {
            file: SafeTensors::open(&file).unwrap_or_else(|e| panic!("{e}")),
            ops: Operators::new(&device).expect("opens"),
            device: device.clone(),
        };
        files(&format!("{name}.safetensors")).into_iter().map(open).collect()
    }
    /// An operator of the library on its own: its outputs.
    fn run(&self, op: &str, inputs: &[(&str, TensorView)], params: &[(&str, ParamValue)]) -> Tensors {
        let registry = kiln_kernels::registry();
        let op = registry.iter().find(|o| o.info().name == op).expect("in the library");
        let spec = |(n, t): &(&str, TensorView)| {
            (n.to_string(), TensorSpec { name: n.to_string(), dtype: t.dtype, shape: t.shape.clone() })
        };
        let mut problem = Problem::default();
        problem.params.extend(params.iter().map(|(n, p)| (n.to_string(), p.clone())));
        problem.tensors.extend(inputs.iter().map(|(n, t)| (n.to_string(), t.clone())));
        for out in op.outputs(&inputs.iter().map(spec).collect(), &problem.params).expect("outputs") {
            problem.tensors.insert(out.name, self.device.zeros(out.dtype, &out.shape).expect("fits"));
        }
        let stream = self.device.stream().expect("opens");
        stream.run(&op.plan(&problem, &DefaultConfigs).expect("plans")).expect("runs");
        stream.synchronize().expect("no fault");
        problem.tensors
    }
    /// The bytes on the device are those of the file.
    fn same_bytes(&self, got: &TensorView, name: &str) {
        assert!(
            self.device.download(got).expect("downloads").data == self.file.tensor(name).expect("reads").data,
            "{name}"
        );
    }
    fn shape(&self, name: &str) -> Vec<usize> {
        self.file.entries[name].shape.clone()
    }
    fn host(&self, name: &str) -> Vec<f32> {
        self.file.tensor(name).expect("reads").to_f64().into_iter().map(|x| x as f32).collect()
    }
    fn whole(&self, name: &str) -> Vec<usize> {
        self.host(name).into_iter().map(|x| x as usize).collect()
    }
    fn up(&self, name: &str) -> TensorView {
        self.ops.upload(&self.shape(name), &self.host(name)).expect("fits")
    }
    /// The tensor on the device is what the file has under this name.
    fn equals(&self, got: &TensorView, name: &str) {
        let (got, want) = (self.ops.download(got).expect("downloads"), self.host(name));
        let largest = want.iter().fold(0.0f32, |a, x| a.max(x.abs()));
        assert_eq!(got.len(), want.len(), "{name}");
        for (i, (a, b)) in got.iter().zip(&want).enumerate() {
            assert!((a - b).abs() <= 1e-5 * largest, "{name}[{i}]: {a} and {b}, largest {largest}");
        }
        assert!(largest > 0.0, "{name}: nothing but zeros tests nothing");
    }
}

#[test]
fn rotary_tables_of_the_published_model() {
    for u in Unit::all("rope") {
        let yarn = Yarn {
            factor: 16.0,
            original_max_position_embeddings: 65536.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            mscale: 0.0,
            mscale_all_dim: 0.0,
        };
        for (name, theta, yarn) in [("main", 1e4, None), ("compress", 1.6e5, Some(&yarn))] {
            let f = rotary::frequencies(64, theta, yarn);
            for (i, (a, b)) in f.iter().zip(u.host(&format!("{name}.inv_freq"))).enumerate() {
                // Two roundings of f32 at most.
                assert!((a - b).abs() <= 2e-7 * b, "{name} {i}: {a} and {b}");
            }
            // The file's own frequencies, so that positions near 2^20 do not enlarge their last bits.
            let f = u.host(&format!("{name}.inv_freq"));
            let positions = u.whole("positions");
            let table = rotary::table(&u.ops, &f, &positions, 1.0).expect("fits");
            for (inverse, part) in [(false, "rotated"), (true, "inverse")] {
                let y = u.ops.rope(&u.up("x"), &table, Pairs::Neighbours, inverse).expect("runs");
                u.equals(&y, &format!("{name}.{part}"));
            }
        }
    }
}

#[test]
fn attention_to_lists_of_keys() {
    for u in Unit::all("sparse_attention") {
        let [queries, most] = u.shape("indices")[..] else { panic!("two axes") };
        let indices = u.file.tensor("indices").expect("reads").to_f64();
        let rows: Vec<Vec<usize>> =
            indices.chunks(most).map(|r| r.iter().filter(|i| **i >= 0.0).map(|i| *i as usize).collect()).collect();
        assert!(rows.len() == queries && rows[5].is_empty(), "a query without keys is among them");
        let a = Attend { values: 128, scale: f64::from(u.host("scale")[0]), sink: Some(&u.up("sink")) };
        let lists = lists(&u.ops, &rows).expect("fits");
        u.equals(&u.ops.attend(&u.up("q"), &u.up("kv"), &lists, &a).expect("runs"), "out");
    }
}

#[test]
fn latent_attention_to_prefixes() {
    for u in Unit::all("latent_attention") {
        let rows: Vec<Vec<usize>> = u.whole("lengths").into_iter().map(|n| (0..n).collect()).collect();
        let a = Attend { values: 128, scale: f64::from(u.host("scale")[0]), sink: None };
        let lists = lists(&u.ops, &rows).expect("fits");
        u.equals(&u.ops.attend(&u.up("q"), &u.up("kv"), &lists, &a).expect("runs"), "out");
    }
}

#[test]
fn index_scores_and_picks() {
    for u in Unit::all("indexer") {
        let scale = u.host("scale")[0];
        let weights: Vec<f32> = u.host("weights").iter().map(|w| w * scale).collect();
        let weights = u.ops.upload(&u.shape("weights"), &weights).expect("fits");
        let keys = u.shape("k")[0] as i32;
        let scores = u.ops.index_scores(&u.up("q"), &u.up("k"), &weights, &[keys; 7]).expect("runs");
        u.equals(&scores, "scores");
        let limits: Vec<i32> = u.whole("limits").into_iter().map(|x| x as i32).collect();
        let scores = u.ops.index_scores(&u.up("q"), &u.up("k"), &weights, &limits).expect("runs");
        let picks = u.ops.topk(&scores, 8, &limits).expect("runs");
        let want: Vec<i64> =
            u.file.tensor("top8_sorted").expect("reads").to_f64().into_iter().map(|x| x as i64).collect();
        assert_eq!(picks, want);
    }
}

#[test]
fn streams_return_through_their_matrix() {
    for u in Unit::all("hyper") {
        let back = kiln_model::operators::Expansion { pre: u.up("pre"), post: u.up("post"), comb: u.up("comb") };
        let h = u.ops.expand(&u.up("block_out"), &u.up("streams"), &back).expect("runs");
        u.equals(&h, "next_streams");
        u.equals(&u.ops.weighted_streams(&u.up("pre"), &u.up("streams")).expect("runs"), "collapsed");
    }
}

#[test]
fn groups_become_entries() {
    for u in Unit::all("compressor") {
        for (name, ratio, overlap) in [("csa", 4, true), ("hca", 128, false)] {
            let [rows, wide] = u.shape(&format!("{name}.kv"))[..] else { panic!("two axes") };
            let width = if overlap { wide / 2 } else { wide };
            let none = u.ops.upload(&[rows / ratio, 0], &[]).expect("fits");
            let [pooled, entries] = u
                .ops
                .compress(&Compress {
                    kv: &u.up(&format!("{name}.kv")),
                    score: &u.up(&format!("{name}.gate")),
                    ape: &u.up(&format!("{name}.ape")),
                    norm: &u.ops.upload(&[width], &vec![1.0; width]).expect("fits"),
                    table: &RopeTable { cos: none.clone(), sin: none },
                    ratio,
                    overlap,
                    eps: 1e-6,
                })
                .expect("runs");
            u.equals(&pooled, &format!("{name}.pooled"));
            // Without rotated channels an entry is the normalised mean.
            let normed = u.ops.rmsnorm(&pooled, None, 1e-6).expect("runs");
            let [a, b] = [&entries, &normed].map(|t| u.ops.download(t).expect("downloads"));
            assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-5), "{name}");
        }
    }
}

#[test]
fn published_roundings_have_the_expected_values() {
    use kiln_model::operators::{Numerics, Rounding};
    for u in Unit::all("formats") {
        let device = kiln_runtime::open("cpu").expect("always there");
        let with = |r| Operators::with(&device, Numerics::Published(r)).expect("opens");
        let (v4, v41) = (with(Rounding::V4), with(Rounding::V41));
        for (name, got) in [
            ("e4m3_128.decoded", v4.narrow_input(&u.up("x")).expect("runs")),
            ("e4m3_64.decoded", v4.key(&u.up("x"), 0).expect("runs")),
            ("e4m3_32.decoded", v41.narrow_input(&u.up("x")).expect("runs")),
            ("e2m1_32.decoded", v41.index_operand(&u.up("x")).expect("runs")),
            ("e2m1_16_e4m3.decoded", v41.entry(&u.up("x"), 0).expect("runs")),
        ] {
            assert!(u.ops.download(&got).expect("downloads") == u.host(name), "{name}");
        }
    }
}

#[test]
fn experts_are_chosen_weighed_and_clamped() {
    for u in Unit::all("moe") {
        let gate = Gate { topk: 6, groups: 0, topk_groups: 0, scoring: "sqrtsoftplus", scale: 1.5, hash: None };
        let routing = u.ops.gate(&u.up("logits"), &u.up("bias"), &gate).expect("runs");
        let ids = u.ops.download_integers(&routing.ids).expect("downloads");
        let weights = u.ops.download(&routing.weights).expect("downloads");
        let (want_ids, want) = (u.whole("top6_sorted"), u.host("weights"));
        for row in 0..ids.len() / 6 {
            let mut pairs: Vec<(i64, f32)> = (row * 6..row * 6 + 6).map(|i| (ids[i], weights[i])).collect();
            pairs.sort_by_key(|p| p.0);
            for (i, (id, w)) in pairs.into_iter().enumerate() {
                assert_eq!(id as usize, want_ids[row * 6 + i]);
                assert!((w - want[row * 6 + i]).abs() < 1e-5, "{w}");
            }
        }
        let (g, v) = (u.host("gate"), u.host("up"));
        let both: Vec<f32> = g.chunks(64).zip(v.chunks(64)).flat_map(|(g, v)| [g, v].concat()).collect();
        let x = u.ops.upload(&[4, 128], &both).expect("fits");
        u.equals(&u.ops.swiglu(&x, Some(10.0)).expect("runs"), "swiglu_limit10");
    }
}

#[test]
fn weights_of_a_site_from_its_mixes() {
    for u in Unit::all("hyper") {
        // A stream and a projection that give the file's mixes: each token's numbers are the mixes over 4 and one that makes their
        // mean square 1, so that normalising changes nothing.
        const WIDE: usize = 32;
        let mixes = u.host("mixes");
        let (tokens, each) = (mixes.len() / 24, 24);
        let stream = |t: usize| {
            let mut row: Vec<f32> = mixes[t * each..][..each].iter().map(|m| m / 4.0).collect();
            let sum: f32 = row.iter().map(|x| x * x).sum();
            assert!(sum < WIDE as f32, "room for the rest");
            row.push((WIDE as f32 - sum).sqrt());
            row.resize(WIDE, 0.0);
            row
        };
        let streams: Vec<f32> = (0..tokens).flat_map(stream).collect();
        let projection: Vec<f32> =
            (0..each).flat_map(|i| (0..WIDE).map(move |j| if i == j { 4.0 } else { 0.0 })).collect();
        let h = u.ops.upload(&[tokens, 4, WIDE / 4], &streams).expect("fits");
        let fn_ = u.ops.upload(&[each, WIDE], &projection).expect("fits");
        let (base, scale) = (u.up("base"), u.up("scale"));
        let mixing = Mixing { fn_: &fn_, base: &base, scale: &scale, iters: 20, rms_eps: 1e-20, hc_eps: 1e-6 };
        let (_, back) = u.ops.collapse(&h, &mixing).expect("runs");
        u.equals(&back.pre, "pre");
        u.equals(&back.post, "post");
        u.equals(&back.comb, "comb");
    }
}

#[test]
fn hadamard_transform() {
    for u in Unit::all("hadamard") {
        u.equals(&u.run("hadamard", &[("x", u.up("x"))], &[])["y"], "y");
    }
}

/// Codes and scales to the bit; what they decode to is in the test of the published roundings.
#[test]
fn codes_and_scales_of_the_formats() {
    for u in Unit::all("formats") {
        for group in [128, 64, 32] {
            let params = [
                ("block", ParamValue::List(vec![ParamValue::Int(1), ParamValue::Int(group)])),
                ("ue8m0", ParamValue::Bool(true)),
                ("amax_min", ParamValue::Float(1e-4)),
            ];
            let out = u.run("quant_per_token_fp8", &[("x", u.up("x"))], &params);
            u.same_bytes(&out["q"], &format!("e4m3_{group}.codes"));
            assert!(
                u.ops.download(&out["sf"]).expect("downloads") == u.host(&format!("e4m3_{group}.scale")),
                "{group}"
            );
        }
        let out = u.run("quant_per_token_fp4", &[("x", u.up("x"))], &[("gran_k", ParamValue::Int(32))]);
        u.same_bytes(&out["q_packed"], "e2m1_32.packed");
        let exponents = u.ops.download_integers(&out["sf_exp"]).expect("downloads");
        let bytes: Vec<i64> =
            u.file.tensor("e2m1_32.scale").expect("reads").data.iter().map(|b| i64::from(*b)).collect();
        assert_eq!(exponents, bytes);
    }
}

/// Products of narrow operands, which the network computes on their decoded values.
#[test]
fn products_of_narrow_operands() {
    for u in Unit::all("gemm") {
        let dir = tempfile::tempdir().expect("a folder");
        let decoded = |codes: &str, scale: &str, block: [usize; 2]| {
            let tensors = [("w.weight", codes), ("w.scale", scale)];
            let tensors: Vec<(String, HostTensor)> =
                tensors.map(|(name, of)| (name.to_string(), u.file.tensor(of).expect("reads"))).into();
            std::fs::write(dir.path().join("model.safetensors"), safetensors::write(&tensors)).expect("writes");
            let (shape, values) =
                Checkpoint::open(dir.path(), block).expect("opens").decoded("w.weight").expect("decodes");
            u.ops.upload(&shape, &values).expect("fits")
        };
        let (a, a32) = (decoded("a.codes", "a.scale", [1, 128]), decoded("a32.codes", "a32.scale", [1, 32]));
        let w128 = decoded("w128.codes", "w128.scale", [128, 128]);
        let w32 = decoded("w32.codes", "w32.scale", [32, 32]);
        let w4 = decoded("w4.packed", "w4.scale", [1, 32]);
        for (a, w, y) in [(&a, &w128, "y128"), (&a, &w32, "y32"), (&a32, &w32, "y32x32"), (&a, &w4, "y4")] {
            u.equals(&u.ops.linear(a, w).expect("runs"), y);
        }
    }
}

#[test]
fn drafts_are_scheduled_and_accepted() {
    for file in files("dspark.json") {
        let json: Value = serde_json::from_str(&std::fs::read_to_string(file).expect("reads")).expect("JSON");
        let list = |v: &Value| -> Vec<f64> {
            v.as_array().expect("a list").iter().map(|x| x.as_f64().expect("a number")).collect()
        };
        let rows = |v: &Value| -> Vec<Vec<f64>> { v.as_array().expect("a list").iter().map(list).collect() };
        let counts = |v: &Value| -> Vec<usize> { list(v).into_iter().map(|x| x as usize).collect() };
        let close = |a: f64, b: f64| (a - b).abs() <= 1e-5 * b.abs().max(1e-3);
        for c in json["schedule"].as_array().expect("a list") {
            let (confidence, steps) = (rows(&c["confidence"]), list(&c["steps_per_second"]));
            for (look, lengths, rate) in [
                (Look::UntilFirst, "lengths", "rate"),
                (Look::AtAll, "lengths_without_early_stop", "rate_without_early_stop"),
            ] {
                let (got, at) = schedule(&confidence, &steps, look);
                assert_eq!(got, counts(&c[lengths]), "{c}");
                assert!(close(at, c[rate].as_f64().expect("a number")), "{at}: {c}");
            }
        }
        for c in json["accept"].as_array().expect("a list") {
            let (kept, next) =
                accept(&rows(&c["target"]), &rows(&c["draft"]), &counts(&c["tokens"]), &list(&c["uniforms"]));
            assert_eq!(kept, c["accepted"].as_u64().expect("a number") as usize, "{c}");
            let want = list(&c["next_distribution"]);
            assert!(
                next.len() == want.len() && next.iter().zip(&want).all(|(a, b)| (a - b).abs() < 1e-5),
                "{next:?} {c}"
            );
        }
    }
}
