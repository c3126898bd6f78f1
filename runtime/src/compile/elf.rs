//! Just enough of the ELF format to find an entry's code in a cubin. Any malformed file counts as having no entry.

/// Bytes of the section `.text.<entry>`; `None` if there is no such section.
pub fn code_bytes(image: &[u8], entry: &str) -> Option<usize> {
    if image.get(..5)? != b"\x7fELF\x02" {
        return None;
    }
    let table = usize::try_from(u64_at(image, 0x28)?).ok()?;
    let size = usize::from(u16_at(image, 0x3a)?);
    let count = usize::from(u16_at(image, 0x3c)?);
    let names = usize::from(u16_at(image, 0x3e)?);
    let header = |i: usize| table.checked_add(i.checked_mul(size)?);
    let names_at = usize::try_from(u64_at(image, header(names)?.checked_add(0x18)?)?).ok()?;
    let want = format!(".text.{entry}");
    for i in 0..count {
        let at = header(i)?;
        let name = names_at.checked_add(u32_at(image, at)? as usize)?;
        let end = name.checked_add(want.len())?;
        if image.get(name..end) == Some(want.as_bytes()) && image.get(end) == Some(&0) {
            return usize::try_from(u64_at(image, at.checked_add(0x20)?)?).ok();
        }
    }
    None
}

fn u16_at(b: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(b.get(at..at.checked_add(2)?)?.try_into().ok()?))
}
fn u32_at(b: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(b.get(at..at.checked_add(4)?)?.try_into().ok()?))
}
fn u64_at(b: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(b.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn garbage_has_no_entry() {
        assert_eq!(code_bytes(b"", "k"), None);
        assert_eq!(code_bytes(b"\x7fELF\x02 and nothing more", "k"), None);
        let mut wild = vec![0xff; 200];
        wild[..5].copy_from_slice(b"\x7fELF\x02");
        assert_eq!(code_bytes(&wild, "k"), None);
    }
}
