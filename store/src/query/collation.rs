//! The order in which people expect texts: `A`, `ä`, `b`, `C`. It is the Unicode collation
//! algorithm for no language in particular. Texts that it takes for equal are compared by their
//! bytes, so that no two texts are equal.
//!
//! What must stay true: PostgreSQL (its ICU, the collation `linguistic` of the schema) and SQLite
//! (this function, registered under the same name) put texts in the same order, whatever the locale
//! of the server. No index of SQLite uses it, so a file stays sound when the tables of this library
//! change. (PostgreSQL notices when those of ICU do.)

use std::cmp::Ordering;
use std::sync::LazyLock;

use icu_collator::options::CollatorOptions;
use icu_collator::{Collator, CollatorBorrowed, CollatorPreferences};

/// The name of the order in both databases.
pub const NAME: &str = "linguistic";

pub fn compare(a: &str, b: &str) -> Ordering {
    #[expect(
        clippy::expect_used,
        reason = "the tables are compiled in, and the root's are always among them"
    )]
    static COLLATOR: LazyLock<CollatorBorrowed<'static>> = LazyLock::new(|| {
        Collator::try_new(CollatorPreferences::default(), CollatorOptions::default())
            .expect("the root collation is compiled in")
    });
    COLLATOR.compare(a, b).then_with(|| a.cmp(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_in_the_order_of_a_dictionary() {
        let expected = [
            "", "_x", "-", "1", "10", "2", "a", "A", "ä", "Ä", "abc d", "abc-d", "abcd", "b", "C",
            "é", "n", "ñ", "ss", "ß", "z", "日",
        ];
        let mut texts = expected;
        texts.reverse();
        texts.sort_by(|a, b| compare(a, b));
        assert_eq!(texts, expected);
    }

    #[test]
    fn different_texts_are_never_equal() {
        for (a, b) in [("é", "e\u{301}"), ("a", "a\u{0}"), ("Å", "\u{212b}")] {
            assert_ne!(compare(a, b), Ordering::Equal, "{a:?} {b:?}");
            assert_eq!(compare(a, b), compare(b, a).reverse());
        }
    }
}
