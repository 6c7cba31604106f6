//! Dead letters: the list, one in full, and the question before several are replayed or deleted.

use askama::Template;
use contract::PipeMessage;
use contract::rest::{DeadLetter, DeadLetters, LetterCause, RefusedReplay};

use crate::layout::{Layout, Place};
use crate::pipes::Message;
use crate::text::{self, Time};
use crate::url;

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
        let letters = if count == 1 {
            "dead letter was"
        } else {
            "dead letters were"
        };
        let done = match self {
            Self::Replay => "replayed",
            Self::Delete => "deleted",
        };
        format!(
            "{} {letters} {done}.",
            text::number(i64::try_from(count).unwrap_or(i64::MAX))
        )
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
pub struct LettersPage {
    layout: Layout,
    asked: AskedLetters,
    rows: Vec<LetterRow>,
    next: Option<String>,
    kept: String,
    overflowed: u64,
    is_full: bool,
}

/// A letter, as a line of the list and as the facts of its own page.
#[derive(Debug)]
struct LetterRow {
    id: i64,
    url: String,
    time: Time,
    cause: &'static str,
    /// The job, its URL, the task and its URL.
    task: Option<(String, String, String, String)>,
    label: String,
    origin: Option<(String, String)>,
    found: (String, String),
    worker: String,
    attempts: String,
    bytes: String,
    reason: String,
    is_cut: bool,
}

impl LettersPage {
    /// The list of these letters.
    pub fn new(asked: AskedLetters, letters: &DeadLetters, done: Option<String>) -> Self {
        let next = letters.next.as_deref().map(|after| {
            let fields = asked.fields().into_iter();
            format!("{PATH}{}", url::query(fields.chain([("after", after)])))
        });
        Self {
            layout: layout("Dead letters".to_owned(), done),
            rows: letters.dead_letters.iter().map(LetterRow::of).collect(),
            next,
            kept: text::number(i64::try_from(letters.numbers.kept).unwrap_or(i64::MAX)),
            overflowed: letters.numbers.overflowed,
            is_full: letters.numbers.full,
            asked,
        }
    }

    fn causes(&self) -> Vec<(&'static str, &'static str, bool)> {
        let cause =
            |cause: LetterCause| (cause.name(), words(cause), self.asked.cause == cause.name());
        LetterCause::ALL.map(cause).into()
    }
}

impl LetterRow {
    fn of(letter: &DeadLetter) -> Self {
        let pipe = |name: &String| (name.clone(), url::pipe(name));
        let job = letter.partition_id.as_ref().zip(letter.job_id.as_ref());
        let task = job.map(|(partition, job)| {
            let path = url::job(partition, job);
            let task = letter.task_id.clone().unwrap_or_default();
            let of_task = format!("{path}/tasks/{}", url::encode(&task));
            (job.clone(), path, task, of_task)
        });
        Self {
            id: letter.id,
            url: format!("{PATH}/{}", letter.id),
            time: Time(letter.time),
            cause: words(letter.cause),
            task,
            label: letter.label.clone().unwrap_or_default(),
            origin: letter.origin.as_ref().map(pipe),
            found: pipe(&letter.pipe),
            worker: letter.worker.clone().unwrap_or_default(),
            attempts: letter
                .attempts
                .map_or_else(String::new, |it| it.to_string()),
            bytes: text::bytes(i64::try_from(letter.bytes).unwrap_or(i64::MAX)),
            reason: letter.reason.clone(),
            is_cut: letter.cut,
        }
    }
}

/// One dead letter.
#[derive(Debug, Template)]
#[template(path = "letter.html")]
pub struct LetterPage {
    layout: Layout,
    row: LetterRow,
    message: Message,
}

impl LetterPage {
    /// The page of a letter with its message.
    pub fn new(letter: &DeadLetter) -> Self {
        let none = PipeMessage::default();
        Self {
            layout: layout(format!("Dead letter {}", letter.id), None),
            row: LetterRow::of(letter),
            message: Message::of(letter.message.as_ref().unwrap_or(&none)),
        }
    }
}

/// Asks whether to do something with letters, or says what was refused.
#[derive(Debug, Template)]
#[template(path = "letters-confirm.html")]
pub struct LettersConfirmation {
    layout: Layout,
    action: LetterAction,
    title: String,
    post: String,
    hidden: Vec<(&'static str, String)>,
    back: String,
    is_question: bool,
    refused: Vec<(i64, String, String)>,
    more: u64,
}

impl LettersConfirmation {
    /// Asks about one letter.
    pub fn of_one(id: i64, action: LetterAction) -> Self {
        Self {
            post: format!("{PATH}/{id}/{}", action.name()),
            back: format!("{PATH}/{id}"),
            ..Self::question(format!("{} the dead letter {id}?", action.title()), action)
        }
    }

    /// Asks about all letters that match.
    pub fn of_all(asked: &AskedLetters, action: LetterAction) -> Self {
        let fields = asked.fields();
        let which = if asked.is_narrowed() {
            "all dead letters that match"
        } else {
            "all dead letters"
        };
        Self {
            post: PATH.to_owned(),
            back: format!("{PATH}{}", url::query(fields)),
            hidden: fields.map(|(name, value)| (name, value.to_owned())).into(),
            ..Self::question(format!("{} {which}?", action.title()), action)
        }
    }

    /// Says what was refused after so many were replayed.
    pub fn refused(
        asked: &AskedLetters,
        done: u64,
        refused: u64,
        refusals: &[RefusedReplay],
    ) -> Self {
        let row = |it: &RefusedReplay| (it.id, format!("{PATH}/{}", it.id), it.message.clone());
        Self {
            is_question: false,
            back: format!("{PATH}{}", url::query(asked.fields())),
            refused: refusals.iter().map(row).collect(),
            more: refused - refusals.len() as u64,
            ..Self::question(LetterAction::Replay.done(done), LetterAction::Replay)
        }
    }

    fn question(title: String, action: LetterAction) -> Self {
        Self {
            layout: layout(format!("{} dead letters", action.title()), None),
            action,
            title,
            post: String::new(),
            hidden: Vec::new(),
            back: String::new(),
            is_question: true,
            refused: Vec::new(),
            more: 0,
        }
    }
}

fn words(cause: LetterCause) -> &'static str {
    match cause {
        LetterCause::GivenUp => "given up",
        LetterCause::Poison => "poison",
        LetterCause::NotUnderstood => "not understood",
        LetterCause::Unroutable => "not deliverable",
    }
}

fn layout(title: String, done: Option<String>) -> Layout {
    Layout {
        title,
        place: Place::Letters,
        done,
        ..Layout::default()
    }
}
