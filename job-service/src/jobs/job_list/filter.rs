//! Parses the `filter` parameter, which is RSQL, into a [`Filter`]. Pure.
//!
//! ```text
//! any        = all  ( ("," | " or ")  all  )*
//! all        = one  ( (";" | " and ") one  )*
//! one        = "(" any ")" | selector operator (value | "(" value ("," value)* ")")
//! selector   = "id" | "name" | "correlationId" | "owner" | "status" | "percentageComplete" | "blockedTasks" | "labels." key
//! operator   = "==" | "!=" | "=gt=" | ">" | "=ge=" | ">=" | "=lt=" | "<" | "=le=" | "<=" | "=in=" | "=out="
//! value      = one or more characters except " ' ( ) ; , = ! ~ < > and blank, or any characters in single or double
//!              quotes, where a backslash escapes the next character
//! ```
//!
//! Blanks are allowed between all tokens. In a value of `==` and `!=`, quoted or not, a star
//! matches any sequence of characters.
//!
//! What must stay true:
//! - The parser accepts or rejects any text in bounded time and stack: it limits the length and the
//!   depth.
//! - A filter costs a database little for each job: it has few conditions on labels.
//! - It checks every value, so that no database refuses one.
//! - Meanings and error texts are CAF's. Input for which CAF returns 500 is rejected here.

use contract::JobStatus;
use store::{Comparison, Filter, Pattern, TextField, TextTest};

use crate::rights::Subject;

/// The longest filter, in bytes.
pub const MAX_BYTES: usize = 8192;
/// The deepest nesting of parentheses.
pub const MAX_DEPTH: usize = 32;
/// The largest number of conditions on labels: a database looks up a label of each job for each of
/// them.
pub const MAX_LABELS: usize = 50;

/// The fields that are numbers.
const PERCENTAGE: &str = "percentageComplete";
const BLOCKED_TASKS: &str = "blockedTasks";

/// The error in a filter. Its text is the message for the client.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum FilterError {
    #[error("Unable to parse filter: {what} is expected at character {at}.")]
    Expected { what: &'static str, at: usize },
    #[error("Unable to parse filter: there is no operator {0}.")]
    Operator(String),
    #[error("Unable to parse filter: only =in= and =out= accept several values.")]
    SeveralValues,
    #[error("Unable to parse filter: it is longer than {MAX_BYTES} bytes.")]
    TooLong,
    #[error("Unable to parse filter: parentheses are nested more than {MAX_DEPTH} levels deep.")]
    TooDeep,
    #[error(
        "Unable to parse filter: it has more than {MAX_LABELS} conditions on labels. One =in= accepts several values of a label."
    )]
    TooManyLabels,
    #[error("Unable to parse filter: it contains the character U+0000.")]
    Nul,
    #[error("Unsupported filter key specified: {0}")]
    Key(String),
    #[error("Invalid value for {0} in filter: {1}. It must be a number.")]
    Number(&'static str, String),
    #[error("Invalid value for status in filter: {0}. It must be one of {all}.", all = all_statuses())]
    Status(String),
}

/// Lists the statuses for an error text.
fn all_statuses() -> String {
    JobStatus::ALL.map(JobStatus::name).join(", ")
}

/// Parses a filter.
pub fn parse(text: &str) -> Result<Filter, FilterError> {
    if text.len() > MAX_BYTES {
        return Err(FilterError::TooLong);
    }
    if text.contains('\0') {
        return Err(FilterError::Nul);
    }
    let mut parser = Parser {
        text,
        at: 0,
        depth: 0,
        labels: 0,
    };
    let filter = parser.any()?;
    if parser.rest().is_empty() {
        Ok(filter)
    } else {
        Err(parser.expected("' and ', ' or ' or the end"))
    }
}

#[derive(Debug, Clone, Copy)]
enum Operator {
    Is(Comparison),
    In,
    Out,
}

/// All operators. A longer operator comes before its prefixes, e.g. `<=` before `<`.
const OPERATORS: [(&str, Operator); 12] = [
    ("==", Operator::Is(Comparison::Equal)),
    ("!=", Operator::Is(Comparison::NotEqual)),
    ("=gt=", Operator::Is(Comparison::Greater)),
    ("=ge=", Operator::Is(Comparison::GreaterOrEqual)),
    ("=lt=", Operator::Is(Comparison::Less)),
    ("=le=", Operator::Is(Comparison::LessOrEqual)),
    (">=", Operator::Is(Comparison::GreaterOrEqual)),
    (">", Operator::Is(Comparison::Greater)),
    ("<=", Operator::Is(Comparison::LessOrEqual)),
    ("<", Operator::Is(Comparison::Less)),
    ("=in=", Operator::In),
    ("=out=", Operator::Out),
];

/// The characters that need quotes.
const RESERVED: &[char] = &['"', '\'', '(', ')', ';', ',', '=', '!', '~', '<', '>', ' '];

/// A recursive descent parser. It reads from left to right and never backtracks.
struct Parser<'a> {
    text: &'a str,
    /// The current position, in bytes.
    at: usize,
    depth: usize,
    /// The number of conditions on labels so far.
    labels: usize,
}

impl<'a> Parser<'a> {
    fn any(&mut self) -> Result<Filter, FilterError> {
        let mut filters = vec![self.all()?];
        while self.separator(',', "or ") {
            filters.push(self.all()?);
        }
        Ok(joined(filters, Filter::Any))
    }

    fn all(&mut self) -> Result<Filter, FilterError> {
        let mut filters = vec![self.one()?];
        while self.separator(';', "and ") {
            filters.push(self.one()?);
        }
        Ok(joined(filters, Filter::All))
    }

    fn one(&mut self) -> Result<Filter, FilterError> {
        self.skip_blanks();
        if !self.take('(') {
            return self.comparison();
        }
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(FilterError::TooDeep);
        }
        let filter = self.any()?;
        self.depth -= 1;
        self.skip_blanks();
        if self.take(')') {
            Ok(filter)
        } else {
            Err(self.expected("' and ', ' or ' or ')'"))
        }
    }

    fn comparison(&mut self) -> Result<Filter, FilterError> {
        let selector = self.word();
        if selector.is_empty() {
            return Err(
                self.expected("a name such as id, name, status, percentageComplete or labels.KEY")
            );
        }
        self.skip_blanks();
        let operator = self.operator()?;
        let values = self.values()?;
        match (selector, selector.split_once('.')) {
            ("id", _) => texts(TextField::Id, operator, values),
            ("name", _) => texts(TextField::Name, operator, values),
            ("correlationId", _) => texts(TextField::CorrelationId, operator, values),
            ("owner", _) => texts(TextField::Owner, operator, owners(values)),
            ("status", _) => statuses(operator, values),
            (PERCENTAGE, _) => numbers(PERCENTAGE, Filter::Percentage, operator, values),
            (BLOCKED_TASKS, _) => numbers(BLOCKED_TASKS, Filter::BlockedTasks, operator, values),
            (_, Some(("labels", key))) if !key.is_empty() => {
                self.labels += 1;
                if self.labels > MAX_LABELS {
                    return Err(FilterError::TooManyLabels);
                }
                texts(TextField::Label(key.to_owned()), operator, values)
            }
            _ => Err(FilterError::Key(selector.to_owned())),
        }
    }

    fn operator(&mut self) -> Result<Operator, FilterError> {
        let rest = self.rest();
        if let Some((text, operator)) = OPERATORS.iter().find(|(text, _)| rest.starts_with(text)) {
            self.at += text.len();
            return Ok(*operator);
        }
        // The client meant a word between two equals signs as an operator.
        let name = rest
            .strip_prefix('=')
            .and_then(|rest| rest.split_once('='))
            .map(|(name, _)| name);
        match name.filter(|name| name.bytes().all(|byte| byte.is_ascii_alphabetic())) {
            Some(name) => Err(FilterError::Operator(format!("={name}="))),
            None => Err(self.expected("an operator such as ==, !=, =lt= or =in=")),
        }
    }

    fn values(&mut self) -> Result<Vec<String>, FilterError> {
        self.skip_blanks();
        if !self.take('(') {
            return Ok(vec![self.value()?]);
        }
        let mut values = Vec::new();
        loop {
            self.skip_blanks();
            values.push(self.value()?);
            self.skip_blanks();
            if self.take(')') {
                return Ok(values);
            }
            if !self.take(',') {
                return Err(self.expected("',' or ')'"));
            }
        }
    }

    fn value(&mut self) -> Result<String, FilterError> {
        if let Some(quote @ ('"' | '\'')) = self.rest().chars().next() {
            return self.quoted(quote);
        }
        let word = self.word();
        if word.is_empty() {
            Err(self.expected("a value"))
        } else {
            Ok(word.to_owned())
        }
    }

    fn quoted(&mut self, quote: char) -> Result<String, FilterError> {
        let mut value = String::new();
        let mut chars = self.rest().char_indices().skip(1);
        while let Some((at, c)) = chars.next() {
            match c {
                '\\' => value.extend(chars.next().map(|(_, escaped)| escaped)),
                c if c == quote => {
                    self.at += at + quote.len_utf8();
                    return Ok(value);
                }
                c => value.push(c),
            }
        }
        self.at = self.text.len();
        Err(self.expected(if quote == '"' {
            "a closing \""
        } else {
            "a closing '"
        }))
    }

    /// Consumes the longest text that needs no quotes; may be empty.
    fn word(&mut self) -> &'a str {
        let rest = self.rest();
        let word = &rest[..rest.find(RESERVED).unwrap_or(rest.len())];
        self.at += word.len();
        word
    }

    /// Consumes the sign, or the word with a blank before and after it. Returns false if neither
    /// follows.
    fn separator(&mut self, sign: char, word: &str) -> bool {
        self.skip_blanks();
        if self.take(sign) {
            return true;
        }
        let separates = self.text[..self.at].ends_with(' ') && self.rest().starts_with(word);
        if separates {
            self.at += word.len();
        }
        separates
    }

    fn take(&mut self, sign: char) -> bool {
        let found = self.rest().starts_with(sign);
        if found {
            self.at += sign.len_utf8();
        }
        found
    }

    fn skip_blanks(&mut self) {
        self.at = self.text.len() - self.rest().trim_start_matches(' ').len();
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    /// Returns an error with the current position, counted in characters from 1.
    fn expected(&self, what: &'static str) -> FilterError {
        FilterError::Expected {
            what,
            at: self.text[..self.at].chars().count() + 1,
        }
    }
}

fn joined(mut filters: Vec<Filter>, join: fn(Vec<Filter>) -> Filter) -> Filter {
    match (filters.len(), filters.pop()) {
        (1, Some(only)) => only,
        (_, last) => {
            filters.extend(last);
            join(filters)
        }
    }
}

fn only(values: Vec<String>) -> Result<String, FilterError> {
    let mut values = values.into_iter();
    match (values.next(), values.next()) {
        (Some(value), None) => Ok(value),
        _ => Err(FilterError::SeveralValues),
    }
}

fn texts(field: TextField, operator: Operator, values: Vec<String>) -> Result<Filter, FilterError> {
    let test = match operator {
        Operator::In => TextTest::OneOf(values),
        Operator::Out => TextTest::NoneOf(values),
        Operator::Is(comparison) => {
            let value = only(values)?;
            match comparison {
                Comparison::Equal if value.contains('*') => TextTest::Like(Pattern::new(&value)),
                Comparison::NotEqual if value.contains('*') => {
                    TextTest::Unlike(Pattern::new(&value))
                }
                comparison => TextTest::Is(comparison, value),
            }
        }
    };
    Ok(Filter::Text(field, test))
}

/// Returns the filter on a number; `make` makes one of a comparison.
fn numbers(
    field: &'static str,
    make: fn(Comparison, f64) -> Filter,
    operator: Operator,
    values: Vec<String>,
) -> Result<Filter, FilterError> {
    let number = |value: String| match value.parse::<f64>() {
        Ok(number) if number.is_finite() => Ok(number),
        _ => Err(FilterError::Number(field, value)),
    };
    let each = |comparison: Comparison, values: Vec<String>| -> Result<Vec<Filter>, FilterError> {
        let values = values.into_iter();
        values
            .map(|value| Ok(make(comparison, number(value)?)))
            .collect()
    };
    Ok(match operator {
        Operator::In => Filter::Any(each(Comparison::Equal, values)?),
        Operator::Out => Filter::All(each(Comparison::NotEqual, values)?),
        Operator::Is(comparison) => make(comparison, number(only(values)?)?),
    })
}

/// Resolves a comparison to the statuses that satisfy it. Statuses are ordered alphabetically.
///
/// A job that is shown as Blocked is Active. Only a test for equality with Blocked tells it from
/// other Active jobs.
fn statuses(operator: Operator, values: Vec<String>) -> Result<Filter, FilterError> {
    let status = |value: String| JobStatus::from_name(&value).ok_or(FilterError::Status(value));
    let values = match operator {
        Operator::In | Operator::Out => values,
        Operator::Is(_) => vec![only(values)?],
    };
    let values: Vec<JobStatus> = values.into_iter().map(status).collect::<Result<_, _>>()?;
    let stored = |accepts: &dyn Fn(&JobStatus) -> bool| {
        Filter::Status(JobStatus::STORED.into_iter().filter(accepts).collect())
    };
    let has_blocked = values.contains(&JobStatus::Blocked);
    Ok(match operator {
        Operator::In | Operator::Is(Comparison::Equal) => {
            let is = stored(&|status| values.contains(status));
            if has_blocked {
                Filter::Any(vec![is, Filter::ShownAsBlocked(true)])
            } else {
                is
            }
        }
        Operator::Out | Operator::Is(Comparison::NotEqual) => {
            let is = stored(&|status| !values.contains(status));
            if has_blocked {
                Filter::All(vec![is, Filter::ShownAsBlocked(false)])
            } else {
                is
            }
        }
        Operator::Is(comparison) => stored(&|status| {
            let by_name = |value: &JobStatus| status.name().cmp(value.name());
            values
                .iter()
                .any(|value| comparison.accepts(by_name(value)))
        }),
    })
}

/// Returns the owners whose names these are: `me` is whoever asks.
fn owners(names: Vec<String>) -> Vec<String> {
    let subject = Subject::current();
    let own = |name: String| match subject.name() {
        Some(own) if name == "me" => own.to_owned(),
        _ => name,
    };
    names.into_iter().map(own).collect()
}

#[cfg(test)]
mod tests;
