//! Filters: conditions on the id, name, correlation id, labels, status, percentage and blocked
//! tasks of a job, as a tree. Pure.
//!
//! The databases evaluate the tree as SQL with parameters (`db/sql/job_query.rs`), and
//! `Filter::accepts` evaluates it for a job that may have changed since. Both must select the same
//! jobs; `tests/conformance/agreement.rs` compares them.
//!
//! What must stay true: a condition on a missing text is not met, not even a negative one. A text
//! is missing if the job has no name or correlation id, lacks the label, or has the label without a
//! value.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use contract::JobStatus;

use crate::job_row::JobRow;
use crate::query::collation;
use crate::waits::{self, JobWaits};

/// A condition on a job.
#[derive(Debug, Clone, PartialEq)]
pub enum Filter {
    /// All of these conditions are met; always true for an empty list.
    All(Vec<Filter>),
    /// At least one of these conditions is met.
    Any(Vec<Filter>),
    /// A text of the job passes a test.
    Text(TextField, TextTest),
    /// The published percentage, 0 to 100, compares to this number.
    Percentage(Comparison, f64),
    /// The number of tasks that wait for a condition, or were let go and have not ended, compares
    /// to this number.
    BlockedTasks(Comparison, f64),
    /// The job has one of these statuses. A job that is shown as Blocked is Active.
    Status(Vec<JobStatus>),
    /// The job is shown as Blocked, or is not.
    ShownAsBlocked(bool),
    /// The job has ended and can begin another round, because something of it is not done.
    CanGoOn,
}

/// A text that a job may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TextField {
    /// The job id.
    Id,
    /// The display name.
    Name,
    /// The correlation id of the request that created the job.
    CorrelationId,
    /// The subject that created the job.
    Owner,
    /// The value of the label with this name.
    Label(String),
}

/// A test of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TextTest {
    /// The text compares to this one. Equal texts have the same bytes; less and greater follow the
    /// dictionary order in which jobs are sorted.
    Is(Comparison, String),
    /// The text matches the pattern.
    Like(Pattern),
    /// The text does not match the pattern.
    Unlike(Pattern),
    /// The text is one of these.
    OneOf(Vec<String>),
    /// The text is none of these.
    NoneOf(Vec<String>),
}

/// How a value compares to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    /// `=`
    Equal,
    /// `<>`
    NotEqual,
    /// `<`
    Less,
    /// `<=`
    LessOrEqual,
    /// `>`
    Greater,
    /// `>=`
    GreaterOrEqual,
}

impl Comparison {
    /// Returns whether a value with this ordering to the other one passes.
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

/// A pattern in which `*` stands for any number of characters, and every other character for
/// itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    /// The texts between the stars: one more than there are stars.
    pieces: Vec<String>,
}

impl Pattern {
    /// Parses a pattern. Every text is a valid one.
    pub fn new(text: &str) -> Self {
        Self {
            pieces: text.split('*').map(str::to_owned).collect(),
        }
    }

    /// Returns a pattern for the texts that begin with exactly this prefix.
    pub(crate) fn literal_prefix(prefix: &str) -> Self {
        Self {
            pieces: vec![prefix.to_owned(), String::new()],
        }
    }

    /// Returns whether the whole text matches the pattern.
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
        // The first occurrence of a piece is the best one, because it leaves most of the text to
        // the pieces that follow.
        for piece in between {
            let Some(at) = rest.find(piece.as_str()) else {
                return false;
            };
            rest = &rest[at + piece.len()..];
        }
        true
    }

    /// Returns the pattern in the syntax of PostgreSQL's `like`.
    pub(crate) fn like(&self) -> String {
        self.join("%", |c| match c {
            '%' | '_' | '\\' => Some(format!("\\{c}")),
            _ => None,
        })
    }

    /// Returns the pattern in the syntax of `SQLite`'s `glob`.
    pub(crate) fn glob(&self) -> String {
        self.join("*", |c| {
            matches!(c, '?' | '[' | '*').then(|| format!("[{c}]"))
        })
    }

    fn join(&self, star: &str, escaped: fn(char) -> Option<String>) -> String {
        let spell = |piece: &String| {
            piece
                .chars()
                .map(|c| escaped(c).unwrap_or_else(|| c.to_string()))
                .collect::<String>()
        };
        self.pieces.iter().map(spell).collect::<Vec<_>>().join(star)
    }
}

/// A job with everything that a query can select by.
#[derive(Debug)]
pub(crate) struct Candidate {
    pub job: JobRow,
    pub labels: BTreeMap<String, Option<String>>,
    /// What is known of its tasks that wait; `None` if none does.
    pub waits: Option<JobWaits>,
}

impl Candidate {
    fn text(&self, field: &TextField) -> Option<&str> {
        match field {
            TextField::Id => Some(self.job.job.as_str()),
            TextField::Name => self.job.name.as_deref(),
            TextField::CorrelationId => self.job.correlation_id.as_deref(),
            TextField::Owner => self.job.owner.as_deref(),
            TextField::Label(name) => self.labels.get(name)?.as_deref(),
        }
    }

    fn is_shown_as_blocked(&self) -> bool {
        let waits = self.waits.as_ref();
        waits.is_some_and(|waits| waits::is_shown_as_blocked(&self.job, waits))
    }
}

impl Filter {
    /// Returns whether a job meets the condition.
    pub(crate) fn accepts(&self, candidate: &Candidate) -> bool {
        let job = &candidate.job;
        match self {
            Self::All(filters) => filters.iter().all(|filter| filter.accepts(candidate)),
            Self::Any(filters) => filters.iter().any(|filter| filter.accepts(candidate)),
            Self::Text(field, test) => candidate.text(field).is_some_and(|text| test.accepts(text)),
            // Like the databases, compares the floating-point number that is nearest to the
            // published percentage.
            Self::Percentage(comparison, number) => (f64::from(job.totals.percentage) / 100.0)
                .partial_cmp(number)
                .is_some_and(|ordering| comparison.accepts(ordering)),
            #[expect(clippy::cast_precision_loss, reason = "no job has so many tasks")]
            Self::BlockedTasks(comparison, number) => (job.blocked_tasks as f64)
                .partial_cmp(number)
                .is_some_and(|ordering| comparison.accepts(ordering)),
            Self::Status(statuses) => statuses.contains(&job.status),
            Self::ShownAsBlocked(shown) => candidate.is_shown_as_blocked() == *shown,
            Self::CanGoOn => job.can_go_on(),
        }
    }
}

impl Filter {
    /// Returns labels, with values, that every accepted job has. There may be further ones that
    /// this does not find.
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
    fn star_matches_any_characters_and_everything_else_matches_itself() {
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
    fn characters_that_are_special_to_a_database_are_escaped() {
        let pattern = Pattern::new(r"1%_\?[a]*z");
        assert_eq!(pattern.like(), r"1\%\_\\?[a]%z");
        assert_eq!(pattern.glob(), r"1%_\[?][[]a]*z");
    }
}
