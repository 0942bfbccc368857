//! Escaping of long texts in JSON. It checks eight bytes at a time and copies runs without escapes; the general encoder
//! checks each byte.

const ONES: u64 = u64::from_ne_bytes([0x01; 8]);
const HIGH: u64 = u64::from_ne_bytes([0x80; 8]);

/// The cost of a text in JSON.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Cost {
    /// Bytes beyond those of the text itself.
    pub(super) extra: usize,
    /// Whether the text has characters without a short escape, such as a null.
    pub(super) has_controls: bool,
}

/// Returns the cost of [`escape_into`].
pub(super) fn cost(text: &[u8]) -> Cost {
    let mut cost = Cost::default();
    let mut rest = text;
    while let [byte, after @ ..] = &rest[plain_prefix(rest)..] {
        let extra = if is_control(*byte) { 5 } else { 1 };
        cost.extra += extra;
        cost.has_controls |= is_control(*byte);
        rest = after;
    }
    cost
}

/// Appends the text, without quotation marks, and returns whether it has characters without a short escape. The text may
/// begin or end within a character.
pub(super) fn escape_into(out: &mut Vec<u8>, text: &[u8]) -> bool {
    let mut rest = text;
    let mut has_controls = false;
    loop {
        let (plain, from_there) = rest.split_at(plain_prefix(rest));
        out.extend_from_slice(plain);
        let [byte, after @ ..] = from_there else { return has_controls };
        has_controls |= escape(out, *byte);
        rest = after;
    }
}

/// Returns the number of bytes at the beginning that need no escape.
fn plain_prefix(bytes: &[u8]) -> usize {
    let (words, _) = bytes.as_chunks::<8>();
    let plain = words.iter().take_while(|word| special(u64::from_le_bytes(**word)) == 0).count();
    let start = plain * 8;
    if let Some(word) = words.get(plain) {
        // Only the lowest mark is exact: a borrow may set those above it.
        return start + special(u64::from_le_bytes(*word)).trailing_zeros() as usize / 8;
    }
    let tail = &bytes[start..];
    start + tail.iter().position(|byte| is_special(*byte)).unwrap_or(tail.len())
}

/// Marks the first byte that is a control character, a quotation mark or a backslash. Returns zero if there is none.
fn special(word: u64) -> u64 {
    let below = |word: u64, limit: u64| word.wrapping_sub(ONES * limit) & !word & HIGH;
    let equal = |byte: u8| below(word ^ (ONES * u64::from(byte)), 1);
    below(word, 0x20) | equal(b'"') | equal(b'\\')
}

fn is_special(byte: u8) -> bool {
    byte < 0x20 || byte == b'"' || byte == b'\\'
}

/// Returns whether a special byte has no short escape.
fn is_control(byte: u8) -> bool {
    byte < 0x20 && !matches!(byte, b'\n' | b'\r' | b'\t' | 0x08 | 0x0c)
}

/// Appends the escape of a special byte. Returns whether the byte has no short one.
fn escape(out: &mut Vec<u8>, byte: u8) -> bool {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let short = match byte {
        b'"' | b'\\' => byte,
        b'\n' => b'n',
        b'\r' => b'r',
        b'\t' => b't',
        0x08 => b'b',
        0x0c => b'f',
        _ => {
            let digits = [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 0xf)]];
            out.extend_from_slice(b"\\u00");
            out.extend_from_slice(&digits);
            return true;
        }
    };
    out.extend_from_slice(&[b'\\', short]);
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn escaped(text: &str) -> String {
        let mut out = vec![b'"'];
        escape_into(&mut out, text.as_bytes());
        assert_eq!(cost(text.as_bytes()).extra, out.len() - 1 - text.len());
        out.push(b'"');
        String::from_utf8(out).expect("UTF-8")
    }

    #[test]
    fn every_character_is_written_as_by_the_general_encoder_at_any_position() {
        for character in (0..=0x17f).filter_map(char::from_u32) {
            for before in 0..10 {
                let text = format!("{}{character}{}", "x".repeat(before), "y".repeat(9 - before));
                assert_eq!(escaped(&text), serde_json::to_string(&text).expect("written"), "{text:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn any_text_is_written_as_by_the_general_encoder(text in "(\\PC|[\\x00-\\x24\\\\\"]){0,64}") {
            prop_assert_eq!(escaped(&text), serde_json::to_string(&text).expect("written"));
        }
    }
}
