//! Which jobs are meant: conditions on what a job is called, how far it is and how it is labelled, as a tree. Pure.
//!
//! It hides nothing but the meaning of a condition. The databases are given the tree as SQL with parameters (`db/sql/job_query.rs`);
//! memory asks [`Filter::accepts`]. Both must mean the same, which `tests/conformance/agreement.rs` holds against each other.
//!
//! What must stay true: a condition on a text that is not there (a job without a name, a label that a job has not got, or has
//! without a value) is not met, negative ones included.

use std::cmp::Ordering;

use contract::JobStatus;

use crate::query::collation;

/// A condition on a job.
#[derive(Debug, Clone, PartialEq)]
pub enum Filter {
    /// Each of them; met when there is none.
    All(Vec<Filter>),
    /// At least one of them.
    Any(Vec<Filter>),
    Text(TextField, TextTest),
    /// 0 to 100.
    Percentage(Comparison, f64),
    /// One of these.
    Status(Vec<JobStatus>),
}

/// A text that a job may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TextField {
    Id,
    Name,
    /// The value of the label with this name.
    Label(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TextTest {
    /// Equality is that of bytes. Less and greater are as jobs are sorted: as in a dictionary.
    Is(Comparison, String),
    Like(Pattern),
    Unlike(Pattern),
    OneOf(Vec<String>),
    NoneOf(Vec<String>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Comparison {
    pub fn accepts(self, ordering: Ordering) -> bool {
        match self {
            Self::Equal => ordering.is_eq(),
            Self::NotEqual => ordering.is_ne(),
            Self::Less => ordering.is_lt(),
            Self::LessOrEqual => ordering.is_le(),
            Self::Greater => ordering.is_gt(),
            Self::GreaterOrEqual => ordering.is_ge(),
        }
    }

    pub(crate) const fn operator(self) -> &'static str {
        match self {
            Self::Equal => "=",
            Self::NotEqual => "<>",
            Self::Less => "<",
            Self::LessOrEqual => "<=",
            Self::Greater => ">",
            Self::GreaterOrEqual => ">=",
        }
    }

    pub(crate) const fn is_equality(self) -> bool {
        matches!(self, Self::Equal | Self::NotEqual)
    }
}

/// A text in which a star stands for any run of characters, and everything else for itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    /// What stands between the stars: one piece more than there are stars.
    pieces: Vec<String>,
}

impl Pattern {
    pub fn new(text: &str) -> Self {
        Self {
            pieces: text.split('*').map(str::to_owned).collect(),
        }
    }

    /// What begins with exactly this.
    pub(crate) fn literal_prefix(prefix: &str) -> Self {
        Self {
            pieces: vec![prefix.to_owned(), String::new()],
        }
    }

    pub fn matches(&self, text: &str) -> bool {
        let Some((first, others)) = self.pieces.split_first() else {
            return false;
        };
        let Some(rest) = text.strip_prefix(first.as_str()) else {
            return false;
        };
        let Some((last, between)) = others.split_last() else {
            return rest.is_empty();
        };
        let Some(mut rest) = rest.strip_suffix(last.as_str()) else {
            return false;
        };
        // The first place is the best one: it leaves the most to what follows.
        for piece in between {
            let Some(at) = rest.find(piece.as_str()) else {
                return false;
            };
            rest = &rest[at + piece.len()..];
        }
        true
    }

    /// As PostgreSQL's `like` has it.
    pub(crate) fn like(&self) -> String {
        self.spelled("%", |c| match c {
            '%' | '_' | '\\' => Some(format!("\\{c}")),
            _ => None,
        })
    }

    /// As SQLite's `glob` has it.
    pub(crate) fn glob(&self) -> String {
        self.spelled("*", |c| {
            matches!(c, '?' | '[' | '*').then(|| format!("[{c}]"))
        })
    }

    fn spelled(&self, star: &str, escaped: fn(char) -> Option<String>) -> String {
        let spell = |piece: &String| {
            piece
                .chars()
                .map(|c| escaped(c).unwrap_or_else(|| c.to_string()))
                .collect::<String>()
        };
        self.pieces.iter().map(spell).collect::<Vec<_>>().join(star)
    }
}

/// What a condition looks at.
pub(crate) trait Subject {
    fn status(&self) -> JobStatus;
    /// In hundredths.
    fn percentage(&self) -> i32;
    fn text(&self, field: &TextField) -> Option<&str>;
}

impl Filter {
    pub(crate) fn accepts(&self, job: &impl Subject) -> bool {
        match self {
            Self::All(filters) => filters.iter().all(|filter| filter.accepts(job)),
            Self::Any(filters) => filters.iter().any(|filter| filter.accepts(job)),
            Self::Text(field, test) => job.text(field).is_some_and(|text| test.accepts(text)),
            // As the databases do: the number nearest to the percentage that is shown.
            Self::Percentage(comparison, number) => (f64::from(job.percentage()) / 100.0)
                .partial_cmp(number)
                .is_some_and(|ordering| comparison.accepts(ordering)),
            Self::Status(statuses) => statuses.contains(&job.status()),
        }
    }
}

impl Filter {
    /// Labels, by name and value, that every job has that is accepted. Not all of them are found.
    pub(crate) fn required_labels(&self) -> Vec<(&str, &str)> {
        match self {
            Self::All(filters) => filters.iter().flat_map(Self::required_labels).collect(),
            Self::Text(TextField::Label(name), TextTest::Is(Comparison::Equal, value)) => {
                vec![(name.as_str(), value.as_str())]
            }
            _ => Vec::new(),
        }
    }
}

impl TextTest {
    fn accepts(&self, text: &str) -> bool {
        match self {
            Self::Is(comparison, value) if comparison.is_equality() => {
                comparison.accepts(text.cmp(value))
            }
            Self::Is(comparison, value) => comparison.accepts(collation::compare(text, value)),
            Self::Like(pattern) => pattern.matches(text),
            Self::Unlike(pattern) => !pattern.matches(text),
            Self::OneOf(values) => values.iter().any(|value| value == text),
            Self::NoneOf(values) => values.iter().all(|value| value != text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_run_of_characters_and_nothing_else_does() {
        for (pattern, text, matches) in [
            ("*", "", true),
            ("a*", "a", true),
            ("a*", "ba", false),
            ("*a", "ba", true),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "acb", false),
            ("*ab*ab*", "ab", false),
            ("**a**", "a", true),
            ("100%", "1000", false),
            ("a_*", "ab", false),
            ("a?*", "ab", false),
            ("ä*", "äx", true),
            ("a", "A", false),
            ("a", "ab", false),
        ] {
            assert_eq!(
                Pattern::new(pattern).matches(text),
                matches,
                "{pattern} {text}"
            );
        }
    }

    #[test]
    fn what_means_something_to_a_database_is_escaped() {
        let pattern = Pattern::new(r"1%_\?[a]*z");
        assert_eq!(pattern.like(), r"1\%\_\\?[a]%z");
        assert_eq!(pattern.glob(), r"1%_\[?][[]a]*z");
    }
}
