package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/aetomala/worklease/internal/pgserver"
	"github.com/aetomala/worklease/migrations"
)

// database is where the demo takes place: a schema of its own, on a server that was given or that
// is the demo's too.
type database struct {
	url    string
	schema string
	server *pgserver.Server // nil: given
	pool   *pgxpool.Pool
}

// openDatabase leaves nothing behind when it fails.
func openDatabase(ctx context.Context, url string, out io.Writer) (*database, error) {
	if url == "" {
		fmt.Fprintln(out, "starting a disposable PostgreSQL")
	}
	db := &database{url: url, schema: "worklease_demo_" + strings.ToLower(rand.Text()[:8])}
	err := db.open(ctx)
	if err != nil {
		return nil, errors.Join(err, db.remove())
	}
	return db, nil
}

func (db *database) open(ctx context.Context) error {
	var err error
	if db.url == "" {
		if db.server, err = pgserver.Start(ctx, pgserver.Options{}); err != nil {
			return err
		}
		db.url = db.server.URL()
	}
	if db.pool, err = openPool(ctx, db.url, "parent"); err != nil {
		return err
	}
	if err := db.migrate(ctx); err != nil {
		return err
	}
	_, err = db.pool.Exec(ctx, fmt.Sprintf(createTableSQL, tableName(db.schema).Sanitize()))
	return err
}

func (db *database) migrate(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, db.url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	return migrations.Up(ctx, conn, migrations.WithSchema(db.schema))
}

// removalTime bounds the removal of the schema: sessions of killed workers may hold it up.
const removalTime = 20 * time.Second

// errLeft: the removal failed.
var errLeft = errors.New("something is left behind")

// remove removes all of it, whatever has ended meanwhile.
func (db *database) remove() error {
	if db.server != nil {
		db.close()
		if err := db.server.Stop(); err != nil {
			return fmt.Errorf("%w: %w", errLeft, err)
		}
		return nil
	}
	if db.pool == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), removalTime)
	defer cancel()
	_, err := db.pool.Exec(ctx, `DROP SCHEMA IF EXISTS `+pgx.Identifier{db.schema}.Sanitize()+` CASCADE`)
	db.close()
	if err != nil {
		return fmt.Errorf("%w: schema %s: %w", errLeft, db.schema, err)
	}
	return nil
}

// keep leaves the tables for looking at, and tells where. A server of the demo's own goes with it, so
// keep waits for ctx to end then.
func (db *database) keep(ctx context.Context, out io.Writer) {
	if db.server == nil {
		// Not its address, which may have a password.
		fmt.Fprintf(out, "\nThe tables stay in the schema %s of DATABASE_URL.\n", db.schema)
		return
	}
	fmt.Fprintf(out, "\nThe tables are in the schema %s until ^C: psql '%s'\n", db.schema, db.url)
	<-ctx.Done()
}

func (db *database) close() {
	if db.pool != nil {
		db.pool.Close()
	}
}

// openPool connects, so that a wrong address is told at once.
func openPool(ctx context.Context, url, name string) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = 10
	config.ConnConfig.RuntimeParams["application_name"] = "worklease demo " + name
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	if err := pool.Ping(ctx); err != nil {
		pool.Close()
		return nil, err
	}
	return pool, nil
}
