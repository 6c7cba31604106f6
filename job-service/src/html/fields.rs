//! The fields of the form for a new job.

use crate::html::url;

/// What a job is made of.
#[derive(Debug, Clone, PartialEq)]
pub struct Kind {
    /// The name in URLs, such as `range` or `type:thumbnails`.
    pub name: String,
    /// The name that a viewer reads.
    pub title: String,
    /// What it does, in a sentence.
    pub about: String,
    /// What is asked for, beside what all jobs have.
    pub fields: Vec<Field>,
}

/// A field of a form.
#[derive(Debug, Clone, PartialEq)]
pub struct Field {
    /// The name in the form.
    pub name: String,
    /// What the viewer reads.
    pub title: String,
    /// What to write there.
    pub about: String,
    /// The value at the beginning.
    pub value: String,
    /// An example of a value.
    pub example: String,
    /// How it is entered.
    pub entry: Entry,
    /// Whether a value must be there.
    pub required: bool,
    /// What is wrong with what was entered.
    pub problem: Option<String>,
}

/// How a value is entered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// A line.
    Line,
    /// A number.
    Number,
    /// A whole number.
    Integer,
    /// A line that is not shown.
    Secret,
    /// Several lines.
    Text,
    /// One of these; an empty one where none needs to be chosen.
    Choice(Vec<String>),
}

impl Field {
    /// A field for a line of text that must be there.
    pub fn new(name: &str, title: &str, about: &str) -> Self {
        Self {
            name: name.to_owned(),
            title: title.to_owned(),
            about: about.to_owned(),
            value: String::new(),
            example: String::new(),
            entry: Entry::Line,
            required: true,
            problem: None,
        }
    }

    /// The same for a field that may be empty.
    #[must_use]
    pub fn optional(self) -> Self {
        Self {
            required: false,
            ..self
        }
    }

    /// The same with an example.
    #[must_use]
    pub fn example(self, example: &str) -> Self {
        Self {
            example: example.to_owned(),
            ..self
        }
    }

    /// The same with a value.
    #[must_use]
    pub fn value(self, value: &str) -> Self {
        Self {
            value: value.to_owned(),
            ..self
        }
    }

    /// The same with another entry.
    #[must_use]
    pub fn entry(self, entry: Entry) -> Self {
        Self { entry, ..self }
    }

    pub fn is_text(&self) -> bool {
        self.entry == Entry::Text
    }

    /// Returns the id of the problem in the page. A name may contain spaces.
    pub fn problem_id(&self) -> String {
        format!("problem-{}", url::encode(&self.name))
    }

    pub fn step(&self) -> &'static str {
        match self.entry {
            Entry::Integer => "1",
            _ => "any",
        }
    }

    pub fn input_type(&self) -> &'static str {
        match self.entry {
            Entry::Number | Entry::Integer => "number",
            Entry::Secret => "password",
            Entry::Line | Entry::Text | Entry::Choice(_) => "text",
        }
    }

    pub fn choices(&self) -> Option<&[String]> {
        match &self.entry {
            Entry::Choice(choices) => Some(choices),
            _ => None,
        }
    }
}
