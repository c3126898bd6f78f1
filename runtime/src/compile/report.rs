//! Reads the assembler's report (`--ptxas-options=-v`) out of the compiler's log.

use super::CompileReport;

/// Registers, spills, stack, static shared memory and performance notes of an entry. Only one entry is in a source, so
/// lines of others do not occur; lines of device functions precede the entry's and are overwritten by it.
pub fn parse(log: &str, entry: &str) -> CompileReport {
    let mut report = CompileReport::default();
    let mut ours = true;
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Function properties for ") {
            ours = rest.trim() == entry;
        } else if line.contains("bytes stack frame") && ours {
            report.stack_bytes = before(line, "bytes stack frame");
            report.spill_bytes = before(line, "bytes spill stores") + before(line, "bytes spill loads");
        } else if line.contains("Used ") && line.contains(" registers") {
            report.assembled = true;
            report.registers = before(line, "registers");
            report.shared_bytes = before(line, "bytes smem");
        }
        // Performance notes look like `ptxas info : (C7511) Potential Performance Loss: ..`.
        if let Some(at) = line.find("C75")
            && line[at + 3..].starts_with(|c: char| c.is_ascii_digit())
        {
            report.notes.push(line[at..].trim().to_string());
        }
    }
    report
}

/// The number before a phrase; 0 if the phrase is not there.
fn before(line: &str, phrase: &str) -> usize {
    line.find(phrase)
        .and_then(|at| line[..at].trim_end().rsplit(|c: char| !c.is_ascii_digit()).next()?.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_usual_log() {
        let log = "ptxas info    : 0 bytes gmem\n\
                   ptxas info    : Compiling entry function 'k' for 'sm_90a'\n\
                   ptxas info    : Function properties for k\n\
                   \x20   16 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads\n\
                   ptxas info    : Used 32 registers, used 1 barriers, 2048 bytes smem\n\
                   ptxas info    : (C7511) Potential Performance Loss: wgmma.mma_async instructions are serialized\n";
        let r = parse(log, "k");
        assert_eq!((r.registers, r.spill_bytes, r.stack_bytes, r.shared_bytes), (32, 12, 16, 2048));
        assert!(r.assembled);
        assert_eq!(r.notes.len(), 1);
        assert!(r.notes[0].starts_with("C7511"));
    }

    #[test]
    fn an_empty_log() {
        assert_eq!(parse("", "k"), CompileReport::default());
    }
}
