//! The functions of `operators` against single vectors of other hands: rotary tables, attention, index scores, mixing of streams,
//! compression, routing. f32, within 1e-5 of each tensor's largest value, as sums in another order leave.

use kiln_codegen::abi::TensorView;
use kiln_model::checkpoint::safetensors::SafeTensors;
use kiln_model::config::Yarn;
use kiln_model::layer::{lists, rotary};
use kiln_model::operators::{Attend, Compress, Gate, Operators, Pairs, RopeTable};
use std::path::Path;

struct Unit {
    file: SafeTensors,
    ops: Operators,
}

impl Unit {
    fn open(name: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../tests/data/units/{name}.safetensors"));
        let device = kiln_runtime::open("cpu").expect("always there");
        Unit { file: SafeTensors::open(&path).expect("opens"), ops: Operators::new(&device).expect("opens") }
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
    let u = Unit::open("rope");
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

#[test]
fn attention_to_lists_of_keys() {
    let u = Unit::open("sparse_attention");
    let [queries, most] = u.shape("indices")[..] else { panic!("two axes") };
    let indices = u.file.tensor("indices").expect("reads").to_f64();
    let rows: Vec<Vec<usize>> =
        indices.chunks(most).map(|r| r.iter().filter(|i| **i >= 0.0).map(|i| *i as usize).collect()).collect();
    assert!(rows.len() == queries && rows[5].is_empty(), "a query without keys is among them");
    let a = Attend { values: 128, scale: f64::from(u.host("scale")[0]), sink: Some(&u.up("sink")) };
    let lists = lists(&u.ops, &rows).expect("fits");
    u.equals(&u.ops.attend(&u.up("q"), &u.up("kv"), &lists, &a).expect("runs"), "out");
}

#[test]
fn latent_attention_to_prefixes() {
    let u = Unit::open("latent_attention");
    let rows: Vec<Vec<usize>> = u.whole("lengths").into_iter().map(|n| (0..n).collect()).collect();
    let a = Attend { values: 128, scale: f64::from(u.host("scale")[0]), sink: None };
    let lists = lists(&u.ops, &rows).expect("fits");
    u.equals(&u.ops.attend(&u.up("q"), &u.up("kv"), &lists, &a).expect("runs"), "out");
}

#[test]
fn index_scores_and_picks() {
    let u = Unit::open("indexer");
    let scale = u.host("scale")[0];
    let weights: Vec<f32> = u.host("weights").iter().map(|w| w * scale).collect();
    let weights = u.ops.upload(&u.shape("weights"), &weights).expect("fits");
    let keys = u.shape("k")[0] as i32;
    let scores = u.ops.index_scores(&u.up("q"), &u.up("k"), &weights, &[keys; 7]).expect("runs");
    u.equals(&scores, "scores");
    let limits: Vec<i32> = u.whole("limits").into_iter().map(|x| x as i32).collect();
    let scores = u.ops.index_scores(&u.up("q"), &u.up("k"), &weights, &limits).expect("runs");
    let picks = u.ops.topk(&scores, 8, &limits).expect("runs");
    let want: Vec<i64> = u.file.tensor("top8_sorted").expect("reads").to_f64().into_iter().map(|x| x as i64).collect();
    assert_eq!(picks, want);
}

#[test]
fn streams_return_through_their_matrix() {
    let u = Unit::open("hyper");
    let back = kiln_model::operators::Expansion { pre: u.up("pre"), post: u.up("post"), comb: u.up("comb") };
    let h = u.ops.expand(&u.up("block_out"), &u.up("streams"), &back).expect("runs");
    u.equals(&h, "next_streams");
    u.equals(&u.ops.weighted_streams(&u.up("pre"), &u.up("streams")).expect("runs"), "collapsed");
}

#[test]
fn groups_become_entries() {
    let u = Unit::open("compressor");
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

#[test]
fn published_roundings_have_the_expected_values() {
    use kiln_model::operators::{Numerics, Rounding};
    let u = Unit::open("formats");
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

#[test]
fn experts_are_chosen_weighed_and_clamped() {
    let u = Unit::open("moe");
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
