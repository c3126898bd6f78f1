//! Nearest names: what a misspelt kernel, target, field or shape key probably meant.

/// Edit distance where a swap of neighbours counts as one step.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.to_lowercase().chars().collect(), b.to_lowercase().chars().collect());
    let mut d = vec![vec![0usize; b.len() + 1]; a.len() + 1];
    for (i, row) in d.iter_mut().enumerate() {
        row[0] = i;
    }
    for (j, cell) in d[0].iter_mut().enumerate() {
        *cell = j;
    }
    for i in 1..=a.len() {
        for j in 1..=b.len() {
            let change = usize::from(a[i - 1] != b[j - 1]);
            let mut best = (d[i - 1][j] + 1).min(d[i][j - 1] + 1).min(d[i - 1][j - 1] + change);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(d[i - 2][j - 2] + 1);
            }
            d[i][j] = best;
        }
    }
    d[a.len()][b.len()]
}

/// The name closest to `wrong`, if one is close: within a third of its length, or one contains the other.
pub fn nearest<'a>(wrong: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let names: Vec<_> = names.into_iter().collect();
    let close = |n: &&&str| distance(wrong, n) <= (n.len().max(wrong.len()) / 3).max(1);
    let by_distance = names.iter().filter(close).min_by_key(|n| (distance(wrong, n), !n.starts_with(wrong)));
    by_distance
        .or_else(|| names.iter().find(|n| wrong.len() >= 3 && (n.contains(wrong) || wrong.contains(**n))))
        .copied()
}

/// `did you mean X?` if a name is close, and all names.
pub fn advice<'a>(wrong: &str, names: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<_> = names.into_iter().collect();
    let all = if names.is_empty() { "none".to_string() } else { names.join(", ") };
    match nearest(wrong, names.iter().copied()) {
        Some(n) => format!("did you mean `{n}`? There are: {all}"),
        None => format!("there are: {all}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(wrong: &str, want: Option<&str>) {
        let names = ["sm_80", "rmsnorm", "rope_partial", "quant_per_token_fp8", "hadamard", "sm_90a", "tokens"];
        assert_eq!(nearest(wrong, names), want, "{wrong}");
    }

    #[test]
    fn near_names_are_found_and_far_ones_are_not() {
        check("rmsnrom", Some("rmsnorm"));
        check("rms_norm", Some("rmsnorm"));
        check("RMSNorm", Some("rmsnorm"));
        check("rope", Some("rope_partial"));
        check("sm_90", Some("sm_90a"));
        check("token", Some("tokens"));
        check("convolution", None);
    }
}
