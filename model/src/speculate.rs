//! Drafts: how many of each request to check in a step, and which of them stay. Pure rules over numbers.
//!
//! A draft survives if the ones before it did, with the probability the drafter's confidence gives: `a_j = Π_{i ≤ j} c_i`. A
//! step of `b` tokens runs at `steps_per_second[b]`; drafts are taken in falling order of survival while the expected tokens a second
//! grow. Stopping at the first that does not help keeps sampling lossless: a later draft's confidence depends on the draft
//! before it, which must not decide whether it is looked at itself. Not here: drafting (`draft`), the loop that would use
//! both. Source: DSpark report; Leviathan et al., Fast inference from transformers via speculative decoding, 2023.

/// Whether to look past the first draft that does not help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Lossless.
    UntilFirst,
    /// For confidences that cannot depend on this step's draws.
    AtAll,
}

/// Drafts of each request to check, and the expected tokens a second. `confidence` has a row a request; entry `b` of
/// `steps_per_second` is for steps of `b` tokens, and steps larger than it knows are not made.
pub fn schedule(confidence: &[Vec<f64>], steps_per_second: &[f64], look: Look) -> (Vec<usize>, f64) {
    let mut drafts: Vec<(f64, usize, usize)> = vec![];
    for (request, row) in confidence.iter().enumerate() {
        let survival = row.iter().scan(1.0, |a, c| {
            *a *= c;
            Some(*a)
        });
        drafts.extend(survival.enumerate().filter(|(_, a)| *a > 0.0).map(|(j, a)| (a, request, j)));
    }
    // Equals: the first request, then the first draft.
    drafts.sort_by(|x, y| y.0.total_cmp(&x.0).then((x.1, x.2).cmp(&(y.1, y.2))));
    let requests = confidence.len();
    let (mut lengths, mut expected) = (vec![0; requests], requests as f64);
    let mut best = (lengths.clone(), expected * steps_per_second.get(requests).copied().unwrap_or(0.0));
    for (n, (survival, request, j)) in drafts.into_iter().enumerate() {
        let Some(steps) = steps_per_second.get(requests + n + 1) else { break };
        lengths[request] = j + 1;
        expected += survival;
        let rate = expected * steps;
        if rate > best.1 {
            best = (lengths.clone(), rate);
        } else if look == Look::UntilFirst {
            break;
        }
    }
    best
}

/// Below this a probability is none.
const NONE: f64 = 1e-8;

/// How many drafts stay, and the distribution the next token is drawn from. `target` has a row more than `draft`; draft `k` stays
/// while `uniforms[k] < target / draft` of its token.
pub fn accept(target: &[Vec<f64>], draft: &[Vec<f64>], tokens: &[usize], uniforms: &[f64]) -> (usize, Vec<f64>) {
    let stays = |k: &usize| uniforms[*k] < (target[*k][tokens[*k]] / draft[*k][tokens[*k]].max(NONE)).min(1.0);
    let kept = (0..tokens.len()).take_while(stays).count();
    if kept == tokens.len() {
        return (kept, target[kept].clone());
    }
    let rest: Vec<f64> = target[kept].iter().zip(&draft[kept]).map(|(p, q)| (p - q).max(0.0)).collect();
    let sum: f64 = rest.iter().sum();
    (kept, if sum <= NONE { target[kept].clone() } else { rest.iter().map(|r| r / sum).collect() })
}

/// How many drafts stay where the best token is always taken: those before the first that is another.
pub fn accept_greedy(target: &[usize], draft: &[usize]) -> usize {
    draft.iter().zip(target).take_while(|(a, b)| a == b).count()
}
