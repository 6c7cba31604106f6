//! Dead letters: the list, one in full, and the question before several are replayed or deleted.

use askama::Template;
use contract::rest::{DeadLetter, DeadLetters, LetterCause, RefusedReplay};
use contract::{PipeHeader, PipeMessage};

use crate::layout::{Layout, Place};
use crate::message::Message;
use crate::{filters, text, url};

/// The path of the list.
const PATH: &str = "/dead-letters";

/// What a viewer does with dead letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LetterAction {
    /// Send them again.
    Replay,
    /// Delete them.
    Delete,
}

impl LetterAction {
    /// Returns the action with this name in URLs.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Replay, Self::Delete]
            .into_iter()
            .find(|action| action.name() == name)
    }

    /// Returns the name in URLs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Replay => "replay",
            Self::Delete => "delete",
        }
    }

    /// Returns the name on a button.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Replay => "Replay",
            Self::Delete => "Delete",
        }
    }

    const fn meaning(self) -> &'static str {
        match self {
            Self::Replay => {
                "Each message is sent again, to the pipe from which it came. Jobs that have ended begin a round in which only these tasks \
                 are done again."
            }
            Self::Delete => "The messages are gone for good.",
        }
    }

    /// Returns what has been done to so many letters.
    pub fn done(self, count: u64) -> String {
        let were = if count == 1 { "was" } else { "were" };
        let done = match self {
            Self::Replay => "replayed",
            Self::Delete => "deleted",
        };
        format!("{} {were} {done}.", text::counted(count, "dead letter"))
    }
}

/// What a viewer has asked for, as the fields of the form are filled.
#[derive(Debug, Clone, Default)]
pub struct AskedLetters {
    /// The partition.
    pub partition: String,
    /// The job.
    pub job: String,
    /// The pipe.
    pub pipe: String,
    /// The cause.
    pub cause: String,
    /// A text of the reason.
    pub reason: String,
}

impl AskedLetters {
    /// Returns the fields with their names.
    pub fn fields(&self) -> [(&'static str, &str); 5] {
        [
            ("partition", &self.partition),
            ("job", &self.job),
            ("pipe", &self.pipe),
            ("cause", &self.cause),
            ("reason", &self.reason),
        ]
    }

    fn is_narrowed(&self) -> bool {
        self.fields().iter().any(|(_, value)| !value.is_empty())
    }
}

/// The list of dead letters.
#[derive(Debug, Template)]
#[template(path = "letters.html")]
pub struct LettersPage<'a> {
    layout: Layout,
    asked: &'a AskedLetters,
    found: &'a DeadLetters,
}

/// One dead letter.
#[derive(Debug, Template)]
#[template(path = "letter.html")]
pub struct LetterPage<'a> {
    layout: Layout,
    letter: &'a DeadLetter,
    message: Message<'a>,
}

/// Asks whether to do something with letters, or says what was refused.
#[derive(Debug, Template)]
#[template(path = "letters-confirm.html")]
pub struct LettersConfirmation<'a> {
    layout: Layout,
    action: LetterAction,
    title: String,
    post: String,
    hidden: Vec<(&'static str, &'a str)>,
    back: String,
    is_question: bool,
    refusals: &'a [RefusedReplay],
    more: u64,
}

impl<'a> LettersPage<'a> {
    /// The list of these letters.
    pub fn new(asked: &'a AskedLetters, found: &'a DeadLetters, done: Option<String>) -> Self {
        Self {
            layout: Layout {
                done,
                ..Layout::new("Dead letters".to_owned(), Place::Letters)
            },
            asked,
            found,
        }
    }

    /// Returns the URL of the page that begins after a letter.
    fn older(&self, after: &str) -> String {
        let fields = self.asked.fields().into_iter();
        format!("{PATH}{}", url::query(fields.chain([("after", after)])))
    }
}

impl<'a> LetterPage<'a> {
    /// The page of a letter with its message.
    pub fn new(letter: &'a DeadLetter, message: &'a PipeMessage) -> Self {
        Self {
            layout: Layout::new(format!("Dead letter {}", letter.id), Place::Letters),
            letter,
            message: Message::of(message),
        }
    }
}

impl<'a> LettersConfirmation<'a> {
    /// Asks about one letter.
    pub fn of_one(id: i64, action: LetterAction) -> Self {
        Self {
            post: format!("{PATH}/{id}/{}", action.name()),
            back: format!("{PATH}/{id}"),
            ..Self::question(format!("{} the dead letter {id}?", action.title()), action)
        }
    }

    /// Asks about all letters that match.
    pub fn of_all(asked: &'a AskedLetters, action: LetterAction) -> Self {
        let fields = asked.fields();
        let which = if asked.is_narrowed() {
            "all dead letters that match"
        } else {
            "all dead letters"
        };
        Self {
            post: PATH.to_owned(),
            back: format!("{PATH}{}", url::query(fields)),
            hidden: fields.into(),
            ..Self::question(format!("{} {which}?", action.title()), action)
        }
    }

    /// Says what was refused after so many were replayed.
    pub fn refused(
        asked: &'a AskedLetters,
        done: u64,
        refused: u64,
        refusals: &'a [RefusedReplay],
    ) -> Self {
        Self {
            is_question: false,
            back: format!("{PATH}{}", url::query(asked.fields())),
            refusals,
            more: refused - refusals.len() as u64,
            ..Self::question(LetterAction::Replay.done(done), LetterAction::Replay)
        }
    }

    fn question(title: String, action: LetterAction) -> Self {
        Self {
            layout: Layout::new(format!("{} dead letters", action.title()), Place::Letters),
            action,
            title,
            post: String::new(),
            hidden: Vec::new(),
            back: String::new(),
            is_question: true,
            refusals: &[],
            more: 0,
        }
    }
}

/// Returns the partition, the job and the task of a letter; `None` if it belongs to no job.
fn task_of(letter: &DeadLetter) -> Option<(&str, &str, &str)> {
    let (partition, job) = (letter.partition_id.as_deref()?, letter.job_id.as_deref()?);
    Some((
        partition,
        job,
        letter.task_id.as_deref().unwrap_or_default(),
    ))
}

const fn words(cause: LetterCause) -> &'static str {
    match cause {
        LetterCause::GivenUp => "given up",
        LetterCause::Poison => "poison",
        LetterCause::NotUnderstood => "not understood",
        LetterCause::Unroutable => "not deliverable",
    }
}
