//! The committed tiny models against the numbers expected of them, on the tile VM; and that the comparison can fail.

use kiln_codegen::host_tensor::HostTensor;
use kiln_model::checkpoint::safetensors::{self, SafeTensors};
use kiln_model::forward::Model;
use kiln_model::verify::{self, Check};
use kiln_runtime::Device;
use std::path::{Path, PathBuf};

fn case(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/models").join(name)
}

fn cpu() -> Device {
    kiln_runtime::open("cpu").expect("the tile VM is always there")
}

/// All checks of a case pass, and these are among them.
fn passes(name: &str, names: &[&str]) {
    let checks = verify::run(&case(name), &cpu()).unwrap_or_else(|e| panic!("{name}: {e}"));
    for wanted in names {
        assert!(checks.iter().any(|c| c.name == *wanted), "{name}: no check `{wanted}` in {checks:?}");
    }
    for c in checks {
        assert_eq!(c.ok, Some(true), "{name} {}: {:e} > {:e}: {}", c.name, c.value, c.limit, c.reason);
    }
}

const BASIC: [&str; 3] = ["logits", "decode_logits", "greedy"];

#[test]
fn v3_gives_the_expected_logits() {
    passes("v3", &[&BASIC[..], &["chunks 20+44"]].concat());
}

#[test]
fn v32_selects_the_expected_tokens() {
    passes("v32", &[&BASIC[..], &["chunks 30+50"]].concat());
}

#[test]
fn v4_compresses_in_groups_of_128() {
    passes("v4_hca128", &BASIC);
}

#[test]
fn v4_routes_by_token_and_by_score_and_clamps() {
    passes("v4_moe", &BASIC);
}

#[test]
fn v4_overlapping_groups_selection_and_prediction() {
    passes("v4_mtp", &[&BASIC[..], &["mtp_logits", "mtp_decode_logits", "mtp_greedy"]].concat());
}

#[test]
fn v41_shares_entries_remembers_ngrams_and_drafts() {
    let names = [
        "picks.3",
        "picks.6",
        "engram_rows.1",
        "engram_bucket_sizes",
        "draft",
        "draft_logits",
        "draft_lossless",
        "qat_logits",
    ];
    passes("v41", &[&BASIC[..], &["chunks 7+1+1+81"], &names].concat());
}

/// Cases of `KILN_ORACLE`, all that are there.
#[test]
fn cases_of_another_folder_pass() {
    let Some(folder) = std::env::var_os("KILN_ORACLE") else { return };
    let mut cases: Vec<PathBuf> =
        std::fs::read_dir(&folder).expect("a folder").map(|e| e.expect("an entry").path()).collect();
    cases.retain(|c| c.join("case.json").exists());
    cases.sort();
    for case in cases {
        let checks = verify::run(&case, &cpu()).unwrap_or_else(|e| panic!("{}: {e}", case.display()));
        let failed: Vec<&Check> = checks.iter().filter(|c| c.ok == Some(false)).collect();
        assert!(failed.is_empty() && !checks.is_empty(), "{}: {failed:?}", case.display());
    }
}

/// A copy of a case with one number of a tensor of one of its files changed.
fn disturbed(from: &str, file: &str, tensor: &str, at: usize, by: f64) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    for name in ["config.json", "case.json", "model.safetensors", "expected.safetensors"] {
        std::fs::copy(case(from).join(name), dir.path().join(name)).expect("copies");
    }
    let old = SafeTensors::open(&case(from).join(file)).expect("opens");
    let tensors: Vec<(String, HostTensor)> = old
        .entries
        .keys()
        .map(|name| {
            let mut t = old.tensor(name).expect("reads");
            if name == tensor {
                let mut values = t.to_f64();
                values[at] += by;
                t = HostTensor::from_f64(t.dtype, &t.shape, &values);
            }
            (name.clone(), t)
        })
        .collect();
    std::fs::write(dir.path().join(file), safetensors::write(&tensors)).expect("writes");
    dir
}

fn failing(dir: &Path) -> Vec<String> {
    let checks = verify::run(dir, &cpu()).expect("it runs");
    checks.into_iter().filter(|c: &Check| c.ok == Some(false)).map(|c| c.name).collect()
}

#[test]
fn a_wrong_number_anywhere_fails_a_check() {
    let expected = "expected.safetensors";
    let dir = disturbed("v3", expected, "logits", 777, 2e-4);
    assert_eq!(failing(dir.path()), ["logits"]);
    let dir = disturbed("v3", expected, "decode_logits", 31 * 256, -2e-4);
    assert_eq!(failing(dir.path()), ["decode_logits"]);
    let dir = disturbed("v4_mtp", expected, "mtp_logits", 5, f64::NAN);
    assert_eq!(failing(dir.path()), ["mtp_logits"]);
    // A weight of the last layer: prompt and continuation both move.
    let weight = "model.layers.2.self_attn.kv_b_proj.weight";
    let dir = disturbed("v3", "model.safetensors", weight, 40 * 32 + 3, 1.0);
    let names = failing(dir.path());
    assert!(names.contains(&"logits".to_string()) && names.contains(&"decode_logits".to_string()), "{names:?}");
}

#[test]
fn a_sequence_keeps_its_bits_however_it_is_cut() {
    // Batch-invariant kernels: rows do not know how many others are computed with them.
    let model = Model::load(&case("v4_mtp"), &cpu()).expect("loads");
    let ids: Vec<usize> = (0..23).map(|i| (i * 37 + 5) % 256).collect();
    let run = |sizes: &[usize]| {
        let (mut state, mut at, mut out) = (model.start(), 0, vec![]);
        for &n in sizes {
            let logits = model.step(&ids[at..at + n], &mut state).expect("steps").logits;
            out.extend(model.ops.download(&logits).expect("downloads"));
            at += n;
        }
        assert_eq!(state.position, 23);
        out
    };
    let whole = run(&[23]);
    assert!(whole.iter().all(|x| x.is_finite()) && whole.iter().any(|x| *x != 0.0));
    for sizes in [&[1; 23][..], &[4, 4, 15], &[16, 7], &[3, 17, 2, 1]] {
        assert!(run(sizes) == whole, "{sizes:?}");
    }
}

#[test]
fn tokens_a_model_does_not_have_are_refused() {
    let model = Model::load(&case("v3"), &cpu()).expect("loads");
    let refused = |ids: &[usize]| model.step(ids, &mut model.start()).expect_err("refused").to_string();
    assert!(refused(&[]).contains("at least one token"));
    let text = refused(&[3, 256]);
    assert!(text.contains("config.json") && text.contains("below `vocab_size` 256, got 256"), "{text}");
    let text = refused(&[1; 2049]);
    assert!(text.contains("`max_position_embeddings` 2048") && text.contains("got 2049"), "{text}");
}

#[test]
fn malformed_case_files_are_refused_in_words() {
    let write = |text: &str| {
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::write(dir.path().join("case.json"), text).expect("writes");
        dir
    };
    for (text, want) in [
        ("{", "expected JSON"),
        ("{}", "`prompt` with at least one id"),
        (r#"{"prompt": [1, -2]}"#, "`prompt` as a list of whole numbers"),
        (r#"{"prompt": "x"}"#, "`prompt` as a list of whole numbers"),
        (r#"{"prompt": [1, 2], "chunk_checks": [{"sizes": [1, 2]}]}"#, "add up to the prompt's 2 tokens"),
        (r#"{"prompt": [1, 2], "chunk_checks": [{"sizes": [0, 2]}]}"#, "add up"),
        (r#"{"prompt": [1]}"#, "config.json"),
    ] {
        let dir = write(text);
        let e = verify::run(dir.path(), &cpu()).expect_err(text).to_string();
        assert!(e.contains(want) && e.contains("next:"), "{text}: {e}");
    }
}
