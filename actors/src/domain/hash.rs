//! Hashes that stay the same across restarts and versions of the compiler.

/// FNV-1a, 64 bit: stable, unlike the standard library's hasher, and no secret depends on it.
pub fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

/// Named lists of texts as bytes. Every name and every text is preceded by its length and every list by its count, so that
/// different fields never make the same bytes.
#[derive(Debug, Default)]
pub(crate) struct Canonical(Vec<u8>);

impl Canonical {
    pub(crate) fn field<T: AsRef<str>>(&mut self, name: &str, values: impl IntoIterator<Item = T>) -> &mut Self {
        let values: Vec<T> = values.into_iter().collect();
        self.text(name);
        self.0.extend_from_slice(&(values.len() as u64).to_le_bytes());
        values.iter().for_each(|value| self.text(value.as_ref()));
        self
    }

    pub(crate) fn hash(&self) -> u64 {
        fnv1a(&self.0)
    }

    fn text(&mut self, text: &str) {
        self.0.extend_from_slice(&(text.len() as u64).to_le_bytes());
        self.0.extend_from_slice(text.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_belongs_to_one_text_or_field_is_never_taken_for_another() {
        let encoded = |fields: &[(&str, &[&str])]| {
            let mut encoding = Canonical::default();
            for (name, values) in fields {
                encoding.field(name, *values);
            }
            encoding.0
        };
        let all: [&[(&str, &[&str])]; 6] = [
            &[("a", &["bc"])],
            &[("a", &["b", "c"])],
            &[("ab", &["c"])],
            &[("a", &[]), ("bc", &[])],
            &[("a", &[""])],
            &[("a", &[])],
        ];
        for (index, fields) in all.iter().enumerate() {
            assert!(all[..index].iter().all(|other| encoded(other) != encoded(fields)), "{fields:?}");
        }
    }
}
